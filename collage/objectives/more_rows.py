"""The model of a run with more rows, so that one call computes several requests; proven by rows that run alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.events import ignore
from collage.model.reference import RUNTIME, Reference, made_in_child
from collage.partitioner.errors import CancelledError, CollageError, ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.more_rows import write_rows
from collage.partitioner.ingest.normalize import NormalizedInfo, normalize
from collage.runtime.joined import joined

# Rows that depend on each other differ by more, and rows of other kernels by less.
_TOLERANCE = 1e-4
_FIRST_SEED = 1000


@dataclass(frozen=True)
class MoreRows:
    """A model with more rows.

    Args:
        rows: in a call.
        model: it has the nodes of the model that it was made from, in the same order.
        info: about it.
    """

    rows: int
    model: Model
    info: NormalizedInfo


def with_rows(model: Model, rows: int, folder: Path, cancel: threading.Event | None) -> MoreRows | str:
    """A normalized model with more rows, or why there is none.

    Args:
        model: each input has the first dimension 1.
        rows: of the new model.
        folder: for its files.

    Raises:
        CancelledError: `cancel` was set.
    """
    try:
        made, info = made_in_child(_write, model.path, folder, (rows,), cancel)
        found = MoreRows(rows, made, info)
        return _unlike(model, found) or _mixed(model, found, folder, cancel) or found
    except CancelledError:
        raise
    except CollageError as error:
        return str(error)


def _write(source: Path, destination: Path, rows: int) -> NormalizedInfo | str:
    changed = destination / "changed.onnx"
    refused = write_rows(source, rows, changed)
    if refused is not None:
        return refused
    try:
        return normalize(changed, destination, {}, runtime=RUNTIME)
    except ModelError as error:
        return str(error)
    finally:
        changed.unlink()
        changed.with_name(f"{changed.name}.weights").unlink(missing_ok=True)


def _unlike(model: Model, more: MoreRows) -> str | None:
    """Where the model with more rows is not the same but for its shapes, or None."""
    old, new = model.index, more.model.index
    nodes = [[(node.name, node.op) for node in index.nodes] for index in (old, new)]
    if nodes[0] != nodes[1]:
        return "with more rows it has other nodes"
    for name in old.outputs:
        spec, wanted = new.values[name], old.values[name]
        if name not in new.producer or not wanted.is_static or not spec.is_static:
            return f"output {name!r} has no rows"
        if spec.static_shape != (more.rows, *wanted.static_shape[1:]):
            return f"output {name!r} has shape {spec.static_shape} with more rows"
    return None


def _mixed(model: Model, more: MoreRows, folder: Path, cancel: threading.Event | None) -> str | None:
    """Which output of a row depends on other rows, or None."""
    inputs = [model.index.values[name] for name in model.index.inputs]
    bounds = table_bounds(model.index)
    samples = [seeded_inputs(inputs, _FIRST_SEED + row, bounds) for row in range(more.rows)]
    names = list(model.index.outputs)
    alone = Reference(model, samples, folder / "alone", ignore, cancel).values(names, last=True)
    together = Reference(
        more.model, [joined(samples, more.rows)], folder / "together", ignore, cancel
    ).values(names, last=True)[0]
    for name in names:
        for row, values in enumerate(alone):
            one = np.asarray(together[name])[row : row + 1]
            if not output_error("max", [one], [values[name]]) <= _TOLERANCE:
                return f"output {name!r} of a row depends on other rows"
    return None

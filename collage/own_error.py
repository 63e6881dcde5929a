"""How far a model that rounds to integers is from itself when its numbers move by as little as runtimes differ.

A value that lies between two integers is rounded up by one runtime and down by another, and hundreds of such steps
reach the outputs. No runtime can be held to less than that, be its arithmetic ever so exact.

Invariant: only weights, scales and biases in floating point are moved, as a sum in another order is; the samples stay.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from backends.reference import reference_session, run_session
from backends.samples import read_expected, read_samples, write_samples
from backends.sandbox import ChildFailed, ChildLimits, run_in_child
from backends.verify import output_error
from collage.intake import Reference
from collage.options import TuneOptions
from partitioner.errors import CancelledError
from partitioner.extract import with_outputs
from partitioner.graph_index import GraphIndex

_ROUND = {"QuantizeLinear", "DynamicQuantizeLinear"}
_MOVED, _DRAWS = 1e-5, 6
# Fused integer kernels differ a little more than a handful of draws shows.
_HEADROOM = 1.5
_TIMEOUT_S = 600.0


def rounds_to_integers(index: GraphIndex) -> bool:
    """Whether a model rounds what it computes to integers (weights that were rounded before do not count)."""
    return any(
        node.op_type in _ROUND and node.inputs[0] in index.producer
        for node in index.nodes
        if not node.domain
    )


def allow_own_error(
    reference: Reference, options: TuneOptions, folder: Path, cancel: threading.Event | None = None
) -> tuple[TuneOptions, list[str]]:
    """A run's options with at least the model's own error as tolerance, and what the report says of that.

    Args:
        reference: the samples that plans are chosen by, and their values.
        options: as the caller gave them.
        folder: for files of its own.
        cancel: stops the child when set.

    Raises:
        ModelError: the reference runtime cannot run the model.
        CancelledError: `cancel` was set.
    """
    own = min(1.0, own_error(reference, options.metric, folder, cancel))
    if own <= options.tolerance:
        return options, []
    told = (
        "the model rounds to integers, and weights moved by a hundred-thousandth change its outputs so much that an "
        f"error of {own:.3g} is allowed instead of {options.tolerance:g} (docs/accuracy.md)"
    )
    return options.model_copy(update={"tolerance": own}), [told]


def own_error(
    reference: Reference, metric: str, folder: Path, cancel: threading.Event | None = None
) -> float:
    """The largest error, with headroom, of the model against itself; 0 where nothing is rounded to integers.

    Args:
        reference: the samples and their values.
        metric: how it is measured.
        folder: for files of its own.
        cancel: stops the child when set.

    Raises:
        ModelError: the reference runtime cannot run the model.
        CancelledError: `cancel` was set.
    """
    index = reference.model.index
    if not rounds_to_integers(index):
        return 0.0
    made = [name for name in index.outputs if name in index.producer]
    path = with_outputs(reference.model, [], folder)
    write_samples(folder / "samples.npz", reference.samples)
    write_samples(folder / "expected.npz", reference.expected(made))
    try:
        limits = ChildLimits(timeout_s=_TIMEOUT_S)
        return run_in_child(
            _draw, path.resolve(), folder.resolve(), made, metric, limits=limits, cancel=cancel
        )
    except ChildFailed as failure:
        if failure.kind == "cancelled":
            raise CancelledError("cancelled while looking for the model's own error") from None
        return 0.0


def _draw(path: Path, folder: Path, names: Sequence[str], metric: str) -> float:
    """Move the weights again and again, and compare (runs in the child)."""
    samples = read_samples(folder / "samples.npz", ())
    expected = read_expected(folder / "expected.npz", ())
    model = onnx.load(path)
    kept = [numpy_helper.to_array(t) for t in model.graph.initializer]
    worst = 0.0
    for draw in range(_DRAWS):
        random = np.random.default_rng(draw)
        for tensor, array in zip(model.graph.initializer, kept, strict=True):
            if array.dtype == np.float32:
                moved = array * (1 + random.normal(0.0, _MOVED, array.shape))
                tensor.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), tensor.name))
        onnx.save(model, "moved.onnx", save_as_external_data=True, location=f"weights-{draw}")
        session = reference_session(Path("moved.onnx"))
        onnx.load_external_data_for_model(model, ".")
        Path(f"weights-{draw}").unlink()
        for sample, wanted in zip(samples, expected, strict=True):
            values = run_session(session, sample, names)
            error = output_error(metric, [values[n] for n in names], [wanted[n] for n in names])
            # Labels are equal or not: nothing between says how much.
            worst = max(worst, error if math.isfinite(error) else 0.0)
    return _HEADROOM * worst

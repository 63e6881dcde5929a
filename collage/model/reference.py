"""From a file or a zip to a normalized model with reference values.

What parses or runs the user's model does so in a sandboxed child. ONNX Runtime computes the reference
with optimization off, for all values at once where they fit, into memory-mapped files.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.comparison import Expected
from collage.backends.numerics.mapped_values import Placed, mapped_values, write_values
from collage.backends.numerics.reference import (
    reference_session,
    run_reference,
    run_session,
    session_types,
    table_bounds,
)
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import read_samples as stored_samples
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.deadline import seconds_until
from collage.events import Event, Listener, ignore
from collage.model.numeric_ties import Choices, NumericTies, find_choices, find_ties
from collage.model.random_nodes import random_nodes
from collage.model.rounded_values import needed, rounded_values, with_rounding
from collage.partitioner.emit.extract import with_outputs
from collage.partitioner.errors import BadInputError, ModelError, OutOfTimeError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.ingest.model_dims import FreeDimensionsError, ModelDims
from collage.partitioner.ingest.normalize import NormalizedInfo, Runtime, normalize

Sample = Mapping[str, np.ndarray]

# All intermediate values are kept when they fit in this; else only those that were asked for.
_KEEP_ALL_BYTES = 1 << 30
# So many samples are computed several at once.
_MANY = 64
_INGEST_TIMEOUT_S = 600.0
_REFERENCE_TIMEOUT_S = 1800.0
LONGEST_TIES_S = 20.0


def ingest(
    source: Path,
    work_dir: Path,
    dims: Mapping[str, int] | None = None,
    cancel: threading.Event | None = None,
    least_opset: int = 0,
    kept: Collection[str] = (),
    until_s: float = math.inf,
) -> tuple[Model, NormalizedInfo]:
    """Check and normalize a model in a sandboxed child, and open the result.

    Args:
        source: an ONNX file, or a zip with an ONNX file and its external data.
        work_dir: where `model/model.onnx` is written.
        dims: sizes of free dimensions.
        least_opset: an older model is converted up to this one where that can be done.
        kept: dimensions that stay free.
        until_s: it is done by then, by `time.monotonic`.

    Raises:
        FreeDimensionsError: dimensions have no size.
        ModelError: the model is damaged, unsafe or unsupported.
        OutOfTimeError: it was not read in time.
    """
    if not source.is_file():
        raise BadInputError(f"there is no model file {str(source)!r}")
    given = dict(dims or {}), least_opset, tuple(kept)
    return made_in_child(_normalize, source, work_dir / "model", given, cancel, until_s)


def made_in_child(
    function: Callable[..., NormalizedInfo | _StaysFree | str],
    source: Path,
    destination: Path,
    given: tuple[Any, ...],
    cancel: threading.Event | None,
    until_s: float = math.inf,
) -> tuple[Model, NormalizedInfo]:
    """The model that a function writes into a folder, in a sandboxed child; a text of its own is a refusal."""
    destination.mkdir(parents=True, exist_ok=True)
    timeout_s = seconds_until(until_s, _INGEST_TIMEOUT_S)
    # A link is read as it stands, since its external data may be links beside it.
    limits = ChildLimits(timeout_s=timeout_s, readable=(source.resolve(),))
    try:
        # The child's working directory is empty and gone afterward, so its paths are absolute.
        outcome = run_in_child(
            function, source.absolute(), destination.resolve(), *given, limits=limits, cancel=cancel
        )
    except ChildFailed as failure:
        if failure.kind == "hang" and timeout_s < _INGEST_TIMEOUT_S:
            raise OutOfTimeError(
                f"reading the model was not done after {timeout_s:.0f} s, when the time limit was up; allow more with "
                "--time-limit"
            ) from None
        raise ModelError(
            f"the model could not be read: {failure.kind.replace('_', ' ')} ({failure.reason}); "
            "check it with onnx.checker, and export it again if it is damaged"
        ) from None
    if isinstance(outcome, str):
        raise ModelError(outcome)
    if isinstance(outcome, _StaysFree):
        raise FreeDimensionsError(outcome.message, outcome.dims)
    return Model.open(destination / "model.onnx"), outcome


@dataclass(frozen=True)
class _StaysFree:
    """Which dimensions of a model have no size, and the message that says so."""

    message: str
    dims: ModelDims


def _normalize(
    source: Path,
    destination: Path,
    dims: dict[str, int],
    least_opset: int,
    kept: tuple[str, ...],
) -> NormalizedInfo | _StaysFree | str:
    try:
        return normalize(source, destination, dims, least_opset, RUNTIME, kept)
    except FreeDimensionsError as error:
        return _StaysFree(str(error), error.dims)
    except ModelError as error:
        return str(error)


def _seeded_shapes(path: Path, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of outputs in a run on seeded inputs; nothing where the model does not run on these."""
    try:
        index = GraphIndex.from_ir(ir.load(path))
        specs = [index.values[name] for name in index.inputs]
        inputs = seeded_inputs(specs, 0, table_bounds(index))
        return {n: v.shape for n, v in run_reference(path, inputs, names).items()}
    except Exception:  # the reference run reports why, with the inputs that are given
        return {}


# What ONNX Runtime says of a model, for ingest.
RUNTIME = Runtime(types=session_types, shapes=_seeded_shapes)


class _OutOfMemoryError(ModelError):
    """The values that were asked for at once do not fit in memory."""


class Reference:
    """Sample inputs and the reference value of every tensor for each of them.

    Args:
        samples: inputs by name; values of graph inputs need no run.
        directory: where the values are kept.
        keep_all: compute all values at once when they fit in memory, since more will be asked for.
        ties_s: seconds for finding out what rounding decides, but for a few runs at the least.
        until_s: the first values are there by then, by `time.monotonic`.
    """

    def __init__(
        self,
        model: Model,
        samples: Sequence[Sample],
        directory: Path,
        listener: Listener = ignore,
        cancel: threading.Event | None = None,
        keep_all: bool = True,
        ties_s: float = LONGEST_TIES_S,
        until_s: float = math.inf,
    ) -> None:
        self.until_s = until_s
        self._keep_all, self.ties_s = keep_all, ties_s
        self.model = model
        self.samples = tuple(samples)
        self._directory, self._listener = directory, listener
        self.seconds, self._cancel = 0.0, cancel
        self._random = random_nodes(model)
        self._known: tuple[dict[str, np.ndarray], ...] = tuple(dict(s) for s in self.samples)
        self._lock, self._once = threading.Lock(), threading.Lock()
        self._choices, self._rounded = find_choices(model.index), rounded_values(model.index)
        self._ties: NumericTies | None = None
        self._has_values = False

    def expected(self, names: Sequence[str], *, last: bool = False) -> tuple[dict[str, Expected], ...]:
        """The same as `values`, with the bounds of elements that rounding decides or moves.

        Raises:
            ModelError: the reference runtime cannot run the model.
        """
        read = self.values(needed(names, self._rounded), last=last)
        values = tuple(with_rounding(known, self._rounded, names) for known in read)
        if self._choices is None or not {*self._choices.values} & {*names}:
            return values
        with self._once:
            if self._ties is None:
                self._ties = self._find_ties(self._choices)
        return tuple(
            {**known, **{name: ranged[name] for name in names if name in ranged}}
            for known, ranged in zip(values, self._ties.ranges, strict=True)
        )

    def ties(self) -> dict[str, tuple[int, int]]:
        """By value how many elements are numeric ties, in the worst sample, and of how many."""
        counts: dict[str, tuple[int, int]] = {}
        for sample in self._ties.ranges if self._ties else ():
            for name, ranged in sample.items():
                count = int(np.count_nonzero(ranged.undecided)), ranged.value.size
                counts[name] = max(count, counts.get(name, count))
        return counts

    @property
    def keeps_all(self) -> bool:
        """True when all values that nodes make are known, or were given."""
        made = (name for node in self.model.index.nodes for name in node.outputs if name)
        return all(name in self._known[0] for name in made if self._can_be_output(name))

    @property
    def draws(self) -> bool:
        """True when the model draws random numbers, or may."""
        return bool(self._random)

    @property
    def beyond_comparing(self) -> frozenset[str]:
        """Values of which most elements are ties, or their number is."""
        return self._ties.beyond if self._ties else frozenset()

    def _find_ties(self, found: Choices) -> NumericTies:
        read = self.values(SubGraph(self.model.index, found.nodes).inputs, last=True)
        begin = time.monotonic()

        def say(reason: str) -> None:
            text = f"it could not be found out what rounding decides ({reason})"
            self._listener(Event("reference", text))

        if begin > self.until_s:
            say("the time is up")
            return NumericTies([{} for _ in read])
        try:
            folder = self._directory / "ties"
            return find_ties(
                self.model, found, read, folder, say, self.ties_s, self._cancel, self.until_s
            )
        finally:
            self.seconds += time.monotonic() - begin

    def values(self, names: Sequence[str], *, last: bool = False) -> tuple[dict[str, np.ndarray], ...]:
        """Per sample the reference of each value named; with `last` none but these are computed.

        Raises:
            ModelError: the reference runtime cannot run the model.
        """
        with self._lock:
            missing = [name for name in names if name not in self._known[0]]
            if missing:
                self._compute_within_memory(missing, missing if last else self._worth_keeping(missing))
            return tuple({name: known[name] for name in names} for known in self._known)

    def _worth_keeping(self, missing: Sequence[str]) -> list[str]:
        index = self.model.index
        made = [
            name for node in index.nodes for name in node.outputs if name and self._can_be_output(name)
        ]
        total = sum(index.values[name].size_bytes for name in made) * len(self.samples)
        if total > _KEEP_ALL_BYTES or not self._keep_all:
            return list(missing)
        return list(dict.fromkeys([*missing, *(name for name in made if name not in self._known[0])]))

    def _can_be_output(self, name: str) -> bool:
        spec = self.model.index.values[name]
        used = name in self.model.index.consumers or name in self.model.index.outputs
        return used and spec.is_comparable

    def _compute_within_memory(self, missing: Sequence[str], worth_keeping: Sequence[str]) -> None:
        """Compute all values that are worth it; where they do not fit, those that are missing.

        What values of a shape known only at run time will take cannot be told before.
        """
        try:
            self._compute(list(worth_keeping))
        except _OutOfMemoryError:
            if set(worth_keeping) == set(missing):
                raise
            self._keep_all = False
            self._compute(list(missing))

    def _compute(self, names: list[str]) -> None:
        self._listener(Event("reference", f"computing {len(names)} reference values"))
        begin = time.monotonic()
        self._compute_in_child(names)
        self.seconds += time.monotonic() - begin

    def _compute_in_child(self, names: list[str]) -> None:
        folder = self._directory / f"values-{len(list(self._directory.glob('values-*')))}"
        folder.mkdir(parents=True)
        path = with_outputs(self.model, names, folder)
        # Values that are computed later take about as long as the first.
        until_s = math.inf if self._has_values else self.until_s
        timeout_s = seconds_until(until_s, _REFERENCE_TIMEOUT_S)
        write_samples(folder / "samples.npz", self.samples)
        try:
            placed = run_in_child(
                _reference_values,
                path.resolve(),
                folder.resolve(),
                names,
                [name for name in names if name in self.model.index.outputs] if self._random else [],
                limits=ChildLimits(timeout_s=timeout_s),
                cancel=self._cancel,
            )
        except ChildFailed as failure:
            shutil.rmtree(folder)
            if failure.kind == "hang" and timeout_s < _REFERENCE_TIMEOUT_S:
                count = f"{len(self.samples)} samples" if len(self.samples) > 1 else "1 sample"
                raise OutOfTimeError(
                    f"computing the reference values of {count} was not done after {timeout_s:.0f} s, when the time limit "
                    "was up; allow more with --time-limit, or give fewer samples"
                ) from None
            kind = _OutOfMemoryError if failure.kind == "out_of_memory" else ModelError
            raise kind(
                "the reference runtime (ONNX Runtime, optimization off) cannot run this model on these "
                f"inputs; give real ones with --inputs: {failure.reason}"
            ) from None
        if placed is None:
            raise ModelError(
                f"{', '.join(self._random)} draw{'s' * (len(self._random) == 1)} random numbers, so no two runs of "
                "this model agree; give inputs that switch the noise off with --inputs (a noise scale of 0), "
                "or export the model without it"
            )
        # A copy of all weights, no longer needed.
        for file in folder.glob(f"{path.name}*"):
            file.unlink()
        for position, known in enumerate(self._known):
            known |= mapped_values(folder / f"{position}.bin", placed[position])
        self._has_values = True


def _reference_values(
    path: Path, folder: Path, names: list[str], repeated: list[str]
) -> list[dict[str, Placed]] | None:
    """Write each sample's values to one file (runs in the child).

    Args:
        repeated: values that must come out the same twice; None is returned where they do not.
    """
    session = reference_session(path)

    def compute(position: int, inputs: Sample) -> dict[str, Placed] | None:
        made = run_session(session, inputs, names)
        again = run_session(session, inputs, names) if repeated else made
        if any(not np.array_equal(made[name], again[name]) for name in repeated):
            return None
        return write_values(folder / f"{position}.bin", {name: made[name] for name in names})

    samples = stored_samples(folder / "samples.npz", ())
    # A run has one thread and is the same beside others. Of few samples all values may be kept, and memory is short.
    threads = default_threads() if len(samples) >= _MANY and not repeated else 1
    with ThreadPoolExecutor(threads) as pool:
        placed = list(pool.map(compute, range(len(samples)), samples))
    known = [places for places in placed if places is not None]
    return known if len(known) == len(placed) else None

"""Numeric ties: elements of a model's values that rounding alone decides.

An operator that chooses (TopK, ArgMax, a comparison) picks either of two numbers that are equal but for
rounding. What is gathered by it follows. Runtimes sum in different orders, so each choice is right.

Ties are found by running the model: the sums of products that feed such operators are moved by as much
as runtimes differ, and all that follows is computed again. An element that changes is a tie between the
least and the most that was seen (`collage.backends.numerics.comparison.Ranged`).

Invariants: a value with no such operator before it has no ties. A value of which more than half are
ties is compared as it is: nothing would be left to compare.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from collage.backends.numerics.comparison import Array, Ranged
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.numerics.tensor_files import read_expected, read_samples, write_samples
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.deadline import seconds_until
from collage.partitioner.candidate import bits
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph

_CHOOSE = {
    *("ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Hardmax", "Unique"),
    *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"),
    *("Cast", "Round", "Floor", "Ceil", "Sign"),
}
_SUM = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention"}
_FLOATS = ("float16", "float32", "float64", "bfloat16")
# Standard deviation of the noise, relative to a value's largest magnitude (docs/numeric-ties.md).
MOVED = 1e-5
_DRAWS, _LEAST_DRAWS = 16, 4
# A change of so many times the noise is another choice.
_DIFFERS = 10
_MOST_UNDECIDED = 0.5
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Choices:
    """The part of a model in which choices are made or followed."""

    nodes: int  # computed again (bitset)
    moved: tuple[str, ...]  # the sums of products that feed them
    values: tuple[str, ...]  # made by a choosing operator or after one


@dataclass(frozen=True)
class NumericTies:
    """The ties that were found."""

    ranges: Sequence[Mapping[str, Ranged]]  # per sample the values with ties
    # values compared as they are: most elements are ties, or their number is
    beyond: frozenset[str] = frozenset()


def find_choices(index: GraphIndex) -> Choices | None:
    """Where a model chooses by sums of products; None where it does not."""
    choosing = sum(1 << node.index for node in index.nodes if _chooses(index, node))
    following = choosing | index.descendants_of(choosing)
    nodes = following | _smooth_before(index, choosing)
    nodes |= index.ancestors_of(nodes) & index.descendants_of(nodes)
    moved = [
        name
        for name in SubGraph(index, nodes).inputs
        if name in index.producer and index.values[name].dtype in _FLOATS
    ]
    if not moved:
        return None
    used = {*index.consumers, *index.outputs}
    made = [name for i in bits(following) for name in index.nodes[i].outputs if name in used]
    known = [name for name in made if index.values[name].is_comparable]
    return Choices(nodes, tuple(moved), tuple(known))


def _chooses(index: GraphIndex, node: NodeInfo) -> bool:
    if node.domain or node.op_type not in _CHOOSE:
        return False
    outputs = [index.values[name].dtype for name in node.outputs if name]
    if node.op_type == "Cast" and outputs[0] in (*_FLOATS, "object"):
        return False
    return any(index.values[name].dtype in _FLOATS for name in node.inputs[:2] if name)


def _smooth_before(index: GraphIndex, nodes: int) -> int:
    """The nodes between some nodes and the sums of products before them (bitset)."""
    found, waiting = 0, list(bits(nodes))
    while waiting:
        for i in bits(index.predecessors[waiting.pop()] & ~found):
            node = index.nodes[i]
            if not node.domain and not node.has_body and node.op_type not in _SUM:
                found |= 1 << i
                waiting.append(i)
    return found


def find_ties(
    model: Model,
    found: Choices,
    known: Sequence[Mapping[str, Array]],
    folder: Path,
    say: Callable[[str], None],
    most_s: float,
    cancel: threading.Event | None = None,
    until_s: float = math.inf,
) -> NumericTies:
    """Run the part of a model that chooses several times, its sums moved.

    Args:
        found: of its index.
        known: per sample the reference of the values that `found.nodes` read from outside.
        say: is told why it failed; then nothing is known of ties.
        most_s: after so many seconds no run begins, but for the first few.
        until_s: these end by then, by `time.monotonic`.
    """
    outputs = tuple(name for name in found.values if name in model.index.outputs)
    # All values may be more than fits into the memory of a child; the outputs say what matters most.
    wanted = [found, replace(found, values=outputs)] if outputs else [found]
    for number, choices in enumerate(wanted):
        try:
            return _ties(model, choices, known, folder / str(number), most_s, cancel, until_s)
        except ChildFailed as failure:
            say(failure.reason)
            if failure.kind == "hang":
                break
    return NumericTies([{} for _ in known])


def _ties(
    model: Model,
    found: Choices,
    known: Sequence[Mapping[str, Array]],
    folder: Path,
    most_s: float,
    cancel: threading.Event | None,
    until_s: float,
) -> NumericTies:
    folder.mkdir(parents=True)
    part = extract(model, found.nodes, folder, found.values)
    write_samples(folder / "given.npz", known)
    limits = ChildLimits(timeout_s=seconds_until(until_s, _TIMEOUT_S))
    path, folder = part.path.resolve(), folder.resolve()
    given = path, folder, found.moved, found.values, most_s
    beyond = run_in_child(_draw, *given, limits=limits, cancel=cancel)
    for file in folder.glob(f"{part.path.name}*"):
        file.unlink()
    ranges = [
        {name: value for name, value in sample.items() if isinstance(value, Ranged)}
        for sample in read_expected(folder / "ranges.npz", ())
    ]
    return NumericTies(ranges, frozenset(beyond))


def _draw(
    path: Path, folder: Path, moved: Sequence[str], names: Sequence[str], most_s: float
) -> set[str]:
    """Run the part, write the ranges, and return the values beyond comparing (runs in the child)."""
    session = reference_session(path)
    samples = read_samples(folder / "given.npz", ())
    found: list[dict[str, Ranged]] = []
    beyond: set[str] = set()
    for sample in samples:
        end_s = time.monotonic() + most_s / len(samples)
        value = run_session(session, sample, names)
        low = {name: np.array(value[name]) for name in names if _has_range(value[name])}
        high = {name: np.array(array) for name, array in low.items()}
        for draw in range(_DRAWS):
            if draw >= _LEAST_DRAWS and time.monotonic() > end_s:
                break
            made = run_session(session, {**sample, **_moved(sample, moved, draw)}, names)
            beyond |= {name for name in names if made[name].shape != value[name].shape}
            for name in list(low):
                if made[name].shape != low[name].shape or not _has_range(made[name]):
                    # The number of elements is chosen too, so no element has a place.
                    del low[name], high[name]
                    continue
                np.minimum(low[name], made[name], out=low[name])
                np.maximum(high[name], made[name], out=high[name])
        ranged = {name: _narrowed(value[name], low[name], high[name]) for name in low}
        found.append({n: r for n, r in ranged.items() if 0 < r.undecided.mean() <= _MOST_UNDECIDED})
        beyond |= {n for n, r in ranged.items() if r.undecided.mean() > _MOST_UNDECIDED}
    write_samples(folder / "ranges.npz", found)
    return beyond


def _moved(sample: Mapping[str, Array], names: Sequence[str], draw: int) -> dict[str, Array]:
    random = np.random.default_rng(draw)
    made = {}
    for name in names:
        wide = sample[name].astype(np.float64)
        finite = np.abs(wide[np.isfinite(wide)])
        noise = random.normal(0.0, _moved_by(sample[name]) * finite.max(initial=0.0), wide.shape)
        made[name] = (wide + noise).astype(sample[name].dtype)
    return made


def _moved_by(array: Array) -> float:
    return max(MOVED, float(ml_dtypes.finfo(array.dtype).eps))


def _has_range(array: Array) -> bool:
    if array.size == 0 or array.dtype.kind not in "bfiuV":
        return False
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def _narrowed(value: Array, low: Array, high: Array) -> Ranged:
    """Elements that differ by more than what follows smoothly are ties."""
    differs = low != high
    if value.dtype.kind in "fV":
        wide = [array.astype(np.float64) for array in (low, high, value)]
        differs = wide[1] - wide[0] > _DIFFERS * _moved_by(value) * np.abs(wide[2]).max()
    return Ranged(value, np.where(differs, low, value), np.where(differs, high, value))

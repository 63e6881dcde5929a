"""How requests become one call: their rows are joined along the first dimension, and outputs are cut apart.

That is right only where each row of the outputs depends on its own row of the inputs alone. `Rows.of` checks the shapes,
and `prove_rows` the numbers, before the first request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.serving.engine import Engine

Feed = Mapping[str, np.ndarray]
# Runtimes choose other kernels for other batches, so the last bits differ.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Rows:
    """Requests of a model may be joined.

    Attributes:
        most: rows of one call at most.
        fixed: rows of each call, where the model's batch is fixed; missing ones are filled up.
    """

    most: int
    fixed: int | None

    @classmethod
    def of(cls, engine: Engine, most: int) -> Rows:
        """The way to join requests of a model; raises BadInputError where its shapes allow none."""
        firsts = {port.shape[0] if port.shape else 0 for port in (*engine.inputs, *engine.outputs)}
        if firsts == {None}:
            if most > engine.rows > 1:
                raise BadInputError(
                    f"the model was tuned for calls of {engine.rows} rows; give --max-batch-size {engine.rows} or less"
                )
            return cls(most, None)
        fixed = firsts.pop()
        if firsts or fixed in (None, 0, 1):
            raise BadInputError(
                "batches need one first dimension that all inputs and outputs share, free or above 1; tune the "
                "model with such a batch, or leave out --max-batch-size"
            )
        return cls(min(most, fixed), fixed)

    def key(self, feed: Feed) -> tuple[tuple[int, ...], ...]:
        """Feeds with equal keys can be joined."""
        return tuple(array.shape[1:] for array in feed.values())

    def count(self, feed: Feed) -> int:
        """Rows of a feed; raises ValueError where it has none, or its inputs disagree."""
        counts = {name: array.shape[0] for name, array in feed.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"inputs must have the same number of rows, not {counts}")
        count = int(next(iter(counts.values())))
        if not count:
            raise ValueError("inputs must have at least one row along axis 0")
        return count

    def join(self, feeds: Sequence[Feed]) -> dict[str, np.ndarray]:
        """One feed of all rows, filled up to the fixed batch by the last row."""
        joined = {}
        for name in feeds[0]:
            arrays = [feed[name] for feed in feeds]
            lacking = 0 if self.fixed is None else self.fixed - sum(len(array) for array in arrays)
            if lacking:
                arrays.append(np.repeat(arrays[-1][-1:], lacking, axis=0))
            joined[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return joined

    def cut(self, outputs: Sequence[np.ndarray], counts: Sequence[int]) -> list[list[np.ndarray]]:
        """The outputs of each feed."""
        found, start = [], 0
        for count in counts:
            found.append([output[start : start + count] for output in outputs])
            start += count
        return found


def prove_rows(engine: Engine, rows: Rows) -> None:
    """Compare rows run together with the same rows run apart; raises BadInputError where they differ or do not run."""
    names = [port.name for port in engine.outputs]
    size = rows.fixed or rows.most  # so that the largest call is known to run
    feed = engine.sample(1, size)
    together = _run(engine, feed, size, "give a smaller --max-batch-size, or leave it out")
    for row in range(min(size, 2)):
        alone = {name: array[row : row + 1] for name, array in feed.items()}
        apart = _run(engine, rows.join([alone]), 1, "leave out --max-batch-size")
        for name, one, other in zip(names, apart, together, strict=True):
            if not _close(one[:1], other[row : row + 1]):
                raise BadInputError(
                    f"output {name!r} of a row depends on the other rows, so requests cannot be joined; leave out "
                    "--max-batch-size"
                )


def _run(engine: Engine, feed: Feed, rows: int, remedy: str) -> list[np.ndarray]:
    """All outputs; whatever keeps a call of so many rows from running is the caller's to avoid."""
    try:
        return engine.infer(feed, [port.name for port in engine.outputs])
    except Exception as error:  # a runtime may raise anything
        counted = f"{rows} row{'s' * (rows > 1)}"
        raise BadInputError(f"a call of {counted} cannot be run: {error}; {remedy}") from None


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind not in "fV":
        return bool(np.array_equal(one, other))
    ours, theirs = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.abs(theirs, where=np.isfinite(theirs), out=np.zeros_like(theirs)).max(initial=0.0))
    return bool(np.allclose(ours, theirs, rtol=0, atol=_TOLERANCE * max(scale, 1e-30), equal_nan=True))

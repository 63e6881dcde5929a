"""Which sizes a model really takes, found by trying."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from collage.partitioner.ingest.model_dims import ModelDims
from collage.shapes.proposals import guess

# Of all combinations of usual sizes, so many are tried.
_MOST_COMBINATIONS = 64
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)

# Runs the model at sizes; what is wrong with them, or None.
Try = Callable[[Mapping[str, int]], str | None]


class OutOfTriesError(Exception):
    """The time for trying is over."""


def base(model: ModelDims, known: Mapping[str, int], unsaid: Sequence[str], run: Try) -> dict[str, int]:
    """Sizes of all dimensions at which the model runs; empty where none of those that are tried is.

    Args:
        known: sizes of the dimensions that something is said of.
        unsaid: the others.
    """
    for sizes in itertools.islice(_combinations(model, unsaid), _MOST_COMBINATIONS):
        if run({**known, **sizes}) is None:
            return {**known, **sizes}
    return {}


def _combinations(model: ModelDims, unsaid: Sequence[str]) -> Iterator[dict[str, int]]:
    """Usual sizes: first one for each kind, then each dimension on its own."""
    guesses = {name: guess(model, name) for name in unsaid}
    kinds = {found.kind: found for found in guesses.values()}
    seen = []
    for choice in _near_first([found.usual for found in kinds.values()]):
        of_kind = dict(zip(kinds, choice, strict=True))
        seen.append({name: of_kind[found.kind] for name, found in guesses.items()})
        if len(seen) > _MOST_COMBINATIONS // 2:
            break
    yield from seen
    for choice in _near_first([found.usual for found in guesses.values()]):
        sizes = dict(zip(guesses, choice, strict=True))
        if sizes not in seen:
            yield sizes


def _near_first(options: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """All choices, those that differ least from the first one first."""
    longest = sum(len(each) - 1 for each in options)
    for distance in range(longest + 1):
        yield from _choices(options, distance)


def _choices(options: Sequence[Sequence[int]], distance: int) -> Iterator[tuple[int, ...]]:
    if not options:
        if distance == 0:
            yield ()
        return
    for position, size in enumerate(options[0][: distance + 1]):
        for rest in _choices(options[1:], distance - position):
            yield (size, *rest)


def proposed(model: ModelDims, at: Mapping[str, int], name: str, run: Try) -> str:
    """The text of a range that the model takes, one size if no other is found in time.

    Args:
        model: its dimensions.
        at: sizes at which the model runs.
        name: the dimension; the others stay as they are.
    """
    found, size = guess(model, name), at[name]
    low = high = size
    step = 1

    def takes(other: int) -> bool:
        return other == size or run({**at, name: other}) is None

    with suppress(OutOfTriesError):
        step = next((s for s in _STEPS if takes(size + s) and takes(size + 3 * s)), 0)
        if step:
            low = next((end for end in _ends(found.low, size, -step) if takes(end)), size)
            # From small to large, since the largest may take long.
            for end in reversed(list(_ends(found.high, size, step))):
                if not takes(end):
                    break
                high = end
    return str(low) if low == high else f"{low}..{high}" + (f"/{step}" if step > 1 else "")


def _ends(ends: Sequence[int], size: int, step: int) -> Iterator[int]:
    """Of some sizes those beyond a size, in its steps; a negative step goes down."""
    for end in ends:
        aligned = size + (end - size) // step * step
        if (aligned - size) * step >= 0:
            yield aligned

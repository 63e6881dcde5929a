"""Which sizes a model really takes, found by trying: proposals, and the ends of stated ranges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collage.partitioner.ingest.model_dims import ModelDims
from collage.shapes.dim_text import DimSizes
from collage.shapes.proposals import Guess, guess
from collage.shapes.resolve import flag

# Of all combinations of usual sizes, so many are tried.
_MOST_COMBINATIONS = 64
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)

# Runs the model at sizes; what is wrong with them, or None.
Try = Callable[[Mapping[str, int]], str | None]


class OutOfTriesError(Exception):
    """The time for trying is over."""


@dataclass(frozen=True)
class Refusal:
    """A size that a model does not take.

    Args:
        dimension: its name; None where it is not one dimension alone.
        message: what was tried and why it fails.
        hint: what to say instead; empty where that was not found.
    """

    dimension: str | None
    message: str
    hint: str = ""


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
    """The text of a range that the model takes, one size if there is no other.

    Args:
        model: its dimensions.
        at: sizes at which the model runs.
        name: the dimension; the others stay as they are.
    """
    found, size = guess(model, name), at[name]

    def takes(other: int) -> bool:
        return other == size or run({**at, name: other}) is None

    step = next((step for step in _STEPS if takes(size + step) and takes(size + 3 * step)), None)
    if step is None:
        low = high = size
        step = 1
    else:
        low = next((low for low in _ends(found, size, step, low=True) if takes(low)), size)
        high = next((high for high in _ends(found, size, step, low=False) if takes(high)), size)
    return str(low) if low == high else f"{low}..{high}" + (f"/{step}" if step > 1 else "")


def _ends(found: Guess, size: int, step: int, low: bool) -> Iterator[int]:
    """Sizes to try as an end, in the steps that the model takes."""
    for end in found.low if low else found.high:
        aligned = size + (end - size) // step * step if not low else size - (size - end) // step * step
        if (aligned <= size) if low else (aligned >= size):
            yield aligned


def refused(dims: Mapping[str, DimSizes], run: Try) -> Refusal | None:
    """The first end of the ranges that the model does not take; None where it runs at both.

    Args:
        dims: what is said or proposed of each dimension.
    """
    lows = {name: dim.low for name, dim in dims.items()}
    highs = {name: dim.high for name, dim in dims.items()}
    faults = {"low": run(lows), "high": run(highs) if highs != lows else None}
    if faults["low"] is None and faults["high"] is None:
        return None
    if faults["low"] is not None and faults["high"] is not None and highs != lows:
        return _both(dims, lows, faults["low"], run)
    at, works = (lows, highs) if faults["low"] is not None else (highs, lows)
    return _one_end(dims, at, works, faults["low"] or faults["high"], run)


def _one_end(
    dims: Mapping[str, DimSizes],
    at: Mapping[str, int],
    works: Mapping[str, int],
    fault: str | None,
    run: Try,
) -> Refusal:
    if at == works:
        return Refusal(None, f"the model cannot take {_told(at)}: {fault}")
    for name in (name for name in dims if at[name] != works[name]):
        own = fault if _differing(at, works) == 1 else run({**works, name: at[name]})
        if own is None:  # it is taken where the others are small
            continue
        good = _nearest(dims[name], works, name, at[name], run)
        ends = sorted((works[name], good))
        step = f"/{dims[name].step}" if dims[name].step > 1 else ""
        text = str(good) if ends[0] == ends[1] else f"{ends[0]}..{ends[1]}{step}"
        return Refusal(
            name,
            f"dimension {name}: the model cannot take size {at[name]}: {own}",
            f"it takes {good}, so give {flag(name, text)}",
        )
    message = f"the model cannot take {_told(at)} together: {fault}"
    return Refusal(None, message, "give smaller ranges of these")


def _both(dims: Mapping[str, DimSizes], lows: Mapping[str, int], fault: str, run: Try) -> Refusal:
    """Neither end runs: the sizes between, of which one may."""
    free = [name for name, dim in dims.items() if not dim.is_fixed]
    for name in free:
        good = next((size for size in dims[name].sizes if run({**lows, name: size}) is None), None)
        if good is not None:
            message = f"dimension {name}: the model cannot take size {lows[name]}: {fault}"
            return Refusal(name, message, f"it takes {good}, so give {flag(name, good)}")
    return Refusal(free[0] if len(free) == 1 else None, f"the model cannot take {_told(lows)}: {fault}")


def _nearest(dim: DimSizes, works: Mapping[str, int], name: str, bad: int, run: Try) -> int:
    """The size nearest to a bad one, within the range, that the model takes, by halving."""
    good, step = works[name], dim.step
    while abs(bad - good) > step:
        middle = good + (bad - good) // (2 * step) * step
        if middle in (good, bad):
            break
        if run({**works, name: middle}) is None:
            good = middle
        else:
            bad = middle
    return good


def _differing(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    return sum(one[name] != other[name] for name in one)


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "its inputs"

"""Sizes at the ends of ranges that a model does not take, and what it takes instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.partitioner.ingest.model_dims import ModelDims
from collage.shapes.clusters import Point
from collage.shapes.dim_text import DimSizes
from collage.shapes.proofs import Try, base
from collage.shapes.resolve import flag

_MOST_TOLD = 6


@dataclass(frozen=True)
class Refusal:
    """Sizes that a model does not take.

    Args:
        message: what was tried, why it fails, and what to say instead.
        is_remedied: whether the model runs at what the message says.
    """

    message: str
    is_remedied: bool


@dataclass(frozen=True)
class _End:
    """Sizes at one end of all ranges; those that came together are of one shape that was seen."""

    sizes: Mapping[str, int]
    together: Mapping[str, int]


def refused(
    model: ModelDims, dims: Mapping[str, DimSizes], run: Try, seen: Sequence[Point] = ()
) -> Refusal | None:
    """Why the model does not run at both ends of all ranges; None where it does.

    Args:
        model: its dimensions.
        dims: what is said or proposed of each free one.
        seen: shapes of some dimensions, which may depend on each other: their smallest and largest shapes are ends,
            but for a dimension of which a wider range is said.
    """
    first, last = _ends(dims, [sizes for sizes, _ in seen])
    low, high = run(first.sizes), run(last.sizes)
    if low is None and high is None:
        return None
    if low is not None and high is not None:
        return _at_both_ends(model, dims, first, low, run)
    end, works, fault = (last, first.sizes, high) if low is None else (first, last.sizes, low)
    at = end.sizes
    for name in (name for name in dims if at[name] != works[name] and name not in end.together):
        own = run({**works, name: at[name]})
        if own is None:  # it is taken where the others are those of the other end
            continue
        good = _nearest(dims[name], works, name, run)
        return _of_one(model, name, at[name], own, _between(dims[name], works[name], good), good)
    if end.together and (own := run({**works, **end.together})) is not None:
        return Refusal(
            f"the model cannot take {_told(end.together)}, which was seen: {own}; it takes {_told(works)}, "
            "so leave that shape out",
            is_remedied=True,
        )
    sizes = _told({name: size for name, size in at.items() if size != works[name]})
    return Refusal(
        f"the model cannot take {sizes} together: {fault}; it takes {_told(works)}, so give smaller ranges",
        is_remedied=True,
    )


def _ends(dims: Mapping[str, DimSizes], seen: Sequence[Mapping[str, int]]) -> tuple[_End, _End]:
    lows = {name: dim.low for name, dim in dims.items()}
    highs = {name: dim.high for name, dim in dims.items()}
    if not seen:
        return _End(lows, {}), _End(highs, {})
    # Half a unit tells shapes with a size of 0 apart.
    ordered = sorted(seen, key=lambda sizes: math.prod(size + 0.5 for size in sizes.values()))
    columns = {name: [sizes[name] for sizes in seen] for name in seen[0]}
    small = {name: size for name, size in ordered[0].items() if lows[name] == min(columns[name])}
    large = {name: size for name, size in ordered[-1].items() if highs[name] == max(columns[name])}
    return _End({**lows, **small}, small), _End({**highs, **large}, large)


def _at_both_ends(
    model: ModelDims, dims: Mapping[str, DimSizes], end: _End, fault: str, run: Try
) -> Refusal:
    """Another size of one dimension may do: first one that was said, then any."""
    at = end.sizes
    alone = [name for name in dims if name not in end.together]
    for name in alone:
        for size in dims[name].sizes:
            if run({**at, name: size}) is None:
                return _of_one(model, name, at[name], fault, str(size), size)
    for name in alone:
        others = {other: size for other, size in at.items() if other != name}
        if sizes := base(model, others, [name], run):
            return _of_one(model, name, at[name], fault, str(sizes[name]), sizes[name])
    message = f"the model cannot take {_told(at)}: {fault}"
    if sizes := base(model, {}, list(dims), run):
        flags = " ".join(flag(name, size) for name, size in sizes.items())
        instead = " instead of the shapes that were seen" if end.together else ""
        return Refusal(
            f"{message}; it takes {_told(sizes)}, so give {flags}{instead}", is_remedied=True
        )
    return Refusal(f"{message}; give other sizes", is_remedied=False)


def _of_one(model: ModelDims, name: str, size: int, fault: str, text: str, good: int) -> Refusal:
    return Refusal(
        f"dimension {name} ({model.place(name)}): the model cannot take size {size}: {fault}; it takes "
        f"{good}, so give {flag(name, text)}",
        is_remedied=True,
    )


def _nearest(dim: DimSizes, works: Mapping[str, int], name: str, run: Try) -> int:
    """The size nearest to the bad end, within the range, that the model takes, by halving."""
    good, step = works[name], dim.step
    bad = dim.low if good == dim.high else dim.high
    while abs(bad - good) > step:
        middle = good + (bad - good) // (2 * step) * step
        if middle in (good, bad):
            break
        if run({**works, name: middle}) is None:
            good = middle
        else:
            bad = middle
    return good


def _between(dim: DimSizes, one: int, other: int) -> str:
    """The text of the range between two sizes."""
    if one == other:
        return str(one)
    return f"{min(one, other)}..{max(one, other)}" + (f"/{dim.step}" if dim.step > 1 else "")


def _told(sizes: Mapping[str, int]) -> str:
    named = [f"{name}={size}" for name, size in sizes.items()]
    return ", ".join(named[:_MOST_TOLD]) + (" …" if len(named) > _MOST_TOLD else "") or "its inputs"

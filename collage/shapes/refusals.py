"""Sizes at the ends of ranges that a model does not take, and what it takes instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage.partitioner.ingest.model_dims import ModelDims
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


def refused(model: ModelDims, dims: Mapping[str, DimSizes], run: Try) -> Refusal | None:
    """Why the model does not run at both ends of all ranges; None where it does.

    Args:
        model: its dimensions.
        dims: what is said or proposed of each free one.
    """
    lows = {name: dim.low for name, dim in dims.items()}
    highs = {name: dim.high for name, dim in dims.items()}
    low, high = run(lows), run(highs)
    if low is None and high is None:
        return None
    if low is not None and high is not None:
        return _at_both_ends(model, dims, lows, low, run)
    at, works, fault = (highs, lows, high) if low is None else (lows, highs, low)
    for name in (name for name in dims if at[name] != works[name]):
        own = run({**works, name: at[name]})
        if own is None:  # it is taken where the others are those of the other end
            continue
        good = _nearest(dims[name], works, name, run)
        return _of_one(model, name, at[name], own, _between(dims[name], works[name], good), good)
    sizes = _told({name: size for name, size in at.items() if size != works[name]})
    return Refusal(
        f"the model cannot take {sizes} together: {fault}; it takes {_told(works)}, so give smaller ranges",
        is_remedied=True,
    )


def _at_both_ends(
    model: ModelDims, dims: Mapping[str, DimSizes], at: Mapping[str, int], fault: str, run: Try
) -> Refusal:
    """Another size of one dimension may do: first one that was said, then any."""
    for name, dim in dims.items():
        for size in dim.sizes:
            if run({**at, name: size}) is None:
                return _of_one(model, name, at[name], fault, str(size), size)
    for name in dims:
        others = {other: size for other, size in at.items() if other != name}
        if sizes := base(model, others, [name], run):
            return _of_one(model, name, at[name], fault, str(sizes[name]), sizes[name])
    message = f"the model cannot take {_told(at)}: {fault}"
    if sizes := base(model, {}, list(dims), run):
        flags = " ".join(flag(name, size) for name, size in sizes.items())
        return Refusal(f"{message}; it takes {_told(sizes)}, so give {flags}", is_remedied=True)
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

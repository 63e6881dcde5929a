"""Which sizes a model really takes, found by trying those first that names and places suggest."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from collage.partitioner.ingest.model_dims import ModelDims, TensorDims

# Of all combinations of usual sizes, so many are tried.
_MOST_COMBINATIONS = 64
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)

# Runs the model at sizes; what is wrong with them, or None.
Try = Callable[[Mapping[str, int]], str | None]


@dataclass(frozen=True)
class Guess:
    """Sizes to try for one kind of dimension.

    Args:
        kind: of the dimension; those of one kind are tried with the same size first.
        usual: sizes that a model of this kind usually takes, the likeliest first.
        low: the smallest sizes worth serving, ascending.
        high: the largest, descending.
    """

    kind: str
    usual: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


_BATCH = Guess("batch", (1, 2), (1, 2), (8, 4, 2, 1))
_PAST = Guess("past", (16, 1, 0), (0, 1, 8), (512, 256, 128, 64, 32, 16))
_SEQUENCE = Guess(
    "sequence", (16, 32, 64, 128, 512, 1), (1, 2, 4, 8, 16, 32, 64), (512, 256, 128, 64, 32, 16)
)
_IMAGE = Guess(
    "image",
    (320, 224, 256, 640, 512, 64, 48, 32),
    (32, 48, 64, 128, 224, 320),
    (640, 512, 320, 224, 64),
)
_FRAMES = Guess(
    "frames", (128, 100, 512, 1000, 64, 16), (1, 16, 32, 64, 128), (1024, 512, 256, 128, 64)
)
_SAMPLES = Guess(
    "samples",
    (16000, 512, 576, 4096, 1024, 48000),
    (512, 1024, 4096, 16000),
    (160000, 80000, 32000, 16000, 4096, 1024),
)
_OTHER = Guess(
    "other", (16, 64, 1, 128, 8, 4, 2, 256), (1, 2, 4, 8, 16, 64), (512, 256, 128, 64, 16, 8, 4, 2, 1)
)

# Tried where none of the usual sizes runs.
_COMMON = (16, 128, 64, 256, 100, 8, 4, 2, 1, 512, 32, 96, 1000, 1024, 2048, 80, 10)

# A word of a name, with what it means; the first that is found counts.
_NAMES = (
    (re.compile(r"past|cache|kv"), _PAST),
    (re.compile(r"batch|^n$|^b$|^bs$|^none$"), _BATCH),
    (re.compile(r"height|width|^[hw]$|^[io][hw]$|image|img"), _IMAGE),
    (re.compile(r"audio|wav|sample"), _SAMPLES),
    (re.compile(r"frame|time|mel|^t$"), _FRAMES),
    (re.compile(r"seq|len|token|word|text|phoneme|char|context|^s$|^l$"), _SEQUENCE),
)
_PAST_INPUT = re.compile(r"(^|[/._])(past|cache)")
_STATE = re.compile(r"(^|[/._])(state|hidden|h0?|c0?)$")
_CHANNELS = (1, 3, 4)


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
    guesses = {name: _guess(model, name) for name in unsaid}
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
    found, size = _guess(model, name), at[name]
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


def _guess(model: ModelDims, name: str) -> Guess:
    """Sizes to try for a free dimension."""
    found = _by_name(model, name)
    return replace(found, usual=tuple(dict.fromkeys((*found.usual, *_COMMON))))


def _by_name(model: ModelDims, name: str) -> Guess:
    tensor, axis = model.places[name][0]
    if isinstance(tensor.dims[axis], str):
        for pattern, found in _NAMES:
            if pattern.search(name.lower()):
                return found
    return _by_place(tensor, axis)


def _by_place(tensor: TensorDims, axis: int) -> Guess:
    rank, name = len(tensor.dims), tensor.name.lower()
    if axis == 0:
        return _BATCH if rank > 1 else _OTHER
    if _PAST_INPUT.search(name) and rank >= 3:
        return _PAST
    if rank == 3 and axis == 1 and _STATE.search(name):
        return _BATCH  # (layers, batch, features)
    if rank == 4:
        first = 1 if tensor.dims[3] in _CHANNELS and tensor.dims[1] not in _CHANNELS else 2
        return _IMAGE if axis in (first, first + 1) else _OTHER
    if "int" in tensor.dtype and rank == 2:
        return _SEQUENCE
    if rank == 2:
        return _SAMPLES if re.search(r"audio|wav|speech|signal|sound|input$", name) else _OTHER
    return _FRAMES if rank == 3 else _OTHER

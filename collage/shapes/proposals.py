"""Which sizes a free dimension probably has, from its name and its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from collage.partitioner.ingest.model_dims import ModelDims, TensorDims


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


def guess(model: ModelDims, name: str) -> Guess:
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

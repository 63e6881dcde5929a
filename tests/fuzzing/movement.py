"""Recipes of operators that move elements: shapes, slices, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tests.fuzzing.builder import Builder, NoFitError, Shape, Value, like, replaced

MOVED = ("float32", "float64", "int32", "int64", "bool", "uint8", "float16")


def transposed(b: Builder) -> None:
    """Axes in another order."""
    value = b.pick(*MOVED, rank=(1, 5), fits=lambda v: True)
    order = b.rng.sample(range(value.rank), value.rank)
    b.add("Transpose", [value], like(value, shape=tuple(value.shape[a] for a in order)), perm=order)


def _factors(b: Builder, count: int) -> list[int]:
    sizes = []
    while count > 1 and len(sizes) < 4:
        divisors = [d for d in range(2, count + 1) if count % d == 0]
        sizes.append(b.rng.choice(divisors))
        count //= sizes[-1]
    if count > 1:
        sizes[-1] *= count
    for _ in range(b.rng.randrange(2)):
        sizes.insert(b.rng.randint(0, len(sizes)), 1)
    return sizes


def reshaped(b: Builder) -> None:
    """As many elements in another shape, one size left open now and then."""
    value = b.pick(*MOVED, fits=lambda v: v.is_fixed and 0 not in v.shape)
    sizes = _factors(b, math.prod(value.shape))
    written = list(sizes)
    if sizes and b.rng.random() < 0.5:
        written[b.rng.randrange(len(sizes))] = -1
    b.add("Reshape", [value, b.constant(written, "int64")], like(value, shape=tuple(sizes)))


def flattened(b: Builder) -> None:
    """Two axes, or all sizes but the first kept as they are."""
    value = b.pick(*MOVED, rank=(1, 5), fits=lambda v: v.is_fixed)
    axis = b.rng.randint(0, value.rank)
    shape = (math.prod(value.shape[:axis]), math.prod(value.shape[axis:]))
    b.add("Flatten", [value], like(value, shape=shape), axis=axis)


def kept_first(b: Builder) -> None:
    """A reshape that copies the first size, which may be free."""
    value = b.pick(
        *MOVED, rank=(2, 5), fits=lambda v: all(isinstance(s, int) and s for s in v.shape[1:])
    )
    if value.shape[0] == 0:
        raise NoFitError
    sizes = _factors(b, math.prod(value.shape[1:]))
    written = [0, *sizes]
    b.add("Reshape", [value, b.constant(written, "int64")], like(value, shape=(value.shape[0], *sizes)))


def squeezed(b: Builder) -> None:
    """Axes of one element removed."""
    value = b.pick(*MOVED, fits=lambda v: 1 in v.shape)
    ones = [axis for axis, size in enumerate(value.shape) if size == 1]
    gone = b.rng.sample(ones, b.rng.randint(1, len(ones)))
    shape = tuple(size for axis, size in enumerate(value.shape) if axis not in gone)
    b.add("Squeeze", [value, b.constant(gone, "int64")], like(value, shape=shape))


def unsqueezed(b: Builder) -> None:
    """An axis of one element more."""
    value = b.pick(*MOVED, rank=(0, 4), fits=lambda v: True)
    axis = b.rng.randint(0, value.rank)
    shape = (*value.shape[:axis], 1, *value.shape[axis:])
    written = axis - value.rank - 1 if b.rng.random() < 0.3 else axis
    b.add("Unsqueeze", [value, b.constant([written], "int64")], like(value, shape=shape))


def expanded(b: Builder) -> None:
    """Broadcast to a larger shape."""
    value = b.pick("float32", "int64", "bool", rank=(0, 4))
    shape = tuple(b.rng.choice([1, 2, 3]) if size == 1 else size for size in value.shape)
    written = [size if isinstance(size, int) else 1 for size in shape]
    if b.rng.random() < 0.5:
        shape, written = (2, *shape), [2, *written]
    b.add("Expand", [value, b.constant(written, "int64")], like(value, shape=shape))


def tiled(b: Builder) -> None:
    """Repeated along axes."""
    value = b.pick("float32", "int64", rank=(1, 4))
    times = [b.rng.choice([1, 2]) if isinstance(size, int) else 1 for size in value.shape]
    shape = tuple(s * t if isinstance(s, int) else s for s, t in zip(value.shape, times, strict=True))
    b.add("Tile", [value, b.constant(times, "int64")], like(value, shape=shape))


def concatenated(b: Builder) -> None:
    """Values one after the other; one may be there twice."""
    one = b.pick(*MOVED, rank=(1, 5))
    axis = b.axis(one, fixed=True)

    def fits(other: Value) -> bool:
        return replaced(other.shape, axis, 0) == replaced(one.shape, axis, 0)

    found = [v for v in b.values if v.dtype == one.dtype and v.rank == one.rank and fits(v)]
    found = [v for v in found if isinstance(v.shape[axis], int) and v.bound <= 1e3]
    parts = [one, *(b.rng.choice(found) for _ in range(b.rng.randint(1, 2)))]
    total = sum(v.shape[axis] for v in parts if isinstance(v.shape[axis], int))
    made = like(
        one,
        shape=replaced(one.shape, axis, total),
        exact=all(v.exact for v in parts),
        bound=max(v.bound for v in parts),
    )
    b.add("Concat", parts, made, axis=axis)


def split(b: Builder) -> None:
    """Several outputs, of equal size or not."""
    value = b.pick("float32", "int64", "int32", rank=(1, 5))
    axis = b.axis(value, fixed=True)
    size = value.shape[axis]
    if not isinstance(size, int) or size < 2:
        raise NoFitError
    cut = sorted({0, size, b.rng.randint(0, size), b.rng.randint(1, size - 1)})
    parts = [end - begin for begin, end in pairwise(cut)]
    outputs = [like(value, shape=replaced(value.shape, axis, part)) for part in parts]
    b.add("Split", [value, b.constant(parts, "int64")], *outputs, axis=axis)


def sliced(b: Builder) -> None:
    """A part, forward or backward, empty now and then."""
    value = b.pick(*MOVED, rank=(1, 5))
    axis = b.axis(value, fixed=True)
    size = value.shape[axis]
    assert isinstance(size, int)
    step = b.rng.choice([1, 1, 1, 2, -1, -2])
    begin, end = b.rng.randint(-size, size), b.rng.randint(-size - 1, size + 3)
    count = len(range(*slice(begin, None if step < 0 and end < -size else end, step).indices(size)))
    if count == 0 and b.rng.random() < 0.8:
        raise NoFitError
    given = [b.constant([number], "int64") for number in (begin, end, axis, step)]
    b.add("Slice", [value, *given], like(value, shape=replaced(value.shape, axis, count)))


def gathered(b: Builder) -> None:
    """Rows by number, counted from either end."""
    value = b.pick("float32", "int64", "bool", "int32", rank=(1, 4))
    axis = b.axis(value, fixed=True)
    size = value.shape[axis]
    if not isinstance(size, int) or size == 0:
        raise NoFitError
    places = b.rng.choice([(), (2,), (3,), (2, 2)])
    rows = b.array(places, "int64") % size - (size if b.rng.random() < 0.3 else 0)
    positive = axis % value.rank
    shape = (*value.shape[:positive], *places, *value.shape[positive + 1 :])
    if len(shape) > 5:
        raise NoFitError
    dtype = b.rng.choice(["int64", "int32"])
    b.add("Gather", [value, b.constant(rows, dtype)], like(value, shape=shape), axis=axis)


def looked_up(b: Builder) -> None:
    """Rows of a weight, chosen by a value."""
    rows = b.pick("int64", "int32", rank=(0, 3), exact=True, fits=lambda v: v.is_known and v.bound <= 8)
    if rows not in b.inputs:
        raise NoFitError
    width = b.rng.choice([1, 3, 4])
    table = b.constant(b.array([8, width]))
    b.add("Gather", [table, rows], Value("", "float32", (*rows.shape, width), True, 1))


def by_elements(b: Builder) -> None:
    """Elements gathered or scattered one by one."""
    value = b.pick("float32", "int64", rank=(1, 4), fits=lambda v: v.is_fixed and 0 not in v.shape)
    axis = b.axis(value)
    size = value.shape[axis]
    assert isinstance(size, int)
    if b.rng.random() < 0.5:
        count = b.rng.randint(1, size)
        shape: Shape = replaced(value.shape, axis, count)
        rows = b.array([int(s or 0) for s in shape], "int64") % size
        b.add("GatherElements", [value, b.constant(rows)], like(value, shape=shape), axis=axis)
        return
    shape = replaced(value.shape, axis, 1)
    rows = b.array([int(s or 0) for s in shape], "int64") % size
    updates = b.constant(b.array([int(s or 0) for s in shape], value.dtype))
    b.add(
        "ScatterElements",
        [value, b.constant(rows), updates],
        like(value, bound=value.bound + 8),
        axis=axis,
    )


def by_positions(b: Builder) -> None:
    """Slices gathered or scattered by their positions."""
    value = b.pick("float32", "int64", rank=(1, 4), fits=lambda v: v.is_fixed and 0 not in v.shape)
    depth = b.rng.randint(1, min(2, value.rank))
    sizes = [int(s or 0) for s in value.shape]
    rows = np.unique(
        np.stack([b.array([2], "int64") % size for size in sizes[:depth]], axis=-1), axis=0
    )
    rest = value.shape[depth:]
    if b.rng.random() < 0.5:
        b.add("GatherND", [value, b.constant(rows)], like(value, shape=(len(rows), *rest)))
    else:
        updates = b.constant(b.array([len(rows), *sizes[depth:]], value.dtype))
        b.add("ScatterND", [value, b.constant(rows), updates], like(value, bound=value.bound + 8))


def padded(b: Builder) -> None:
    """More elements at the ends, or fewer."""
    value = b.pick(
        "float32", rank=(1, 4), fits=lambda v: v.is_fixed and all(int(s or 0) > 1 for s in v.shape)
    )
    mode = b.rng.choice(["constant", "constant", "edge", "reflect"])
    low = -1 if mode == "constant" else 0
    pads = [b.rng.randint(low, 1) for _ in range(2 * value.rank)]
    shape = tuple(
        int(size or 0) + pads[axis] + pads[axis + value.rank] for axis, size in enumerate(value.shape)
    )
    if min(shape) < 1:
        raise NoFitError
    given: list[Value | None] = [value, b.constant(pads, "int64")]
    if mode == "constant" and b.rng.random() < 0.5:
        given.append(b.constant(np.float32(0.5)))
    b.add("Pad", given, like(value, shape=shape), mode=mode)


def measured(b: Builder) -> None:
    """The shape or size of a value as numbers, whatever runs tell of it."""
    value = b.pick(fits=lambda v: True)
    if b.rng.random() < 0.5:
        b.add("Shape", [value], Value("", "int64", (value.rank,), True, 64))
    else:
        b.add("Size", [value], Value("", "int64", (), True, 999))


def reshaped_alike(b: Builder) -> None:
    """A reshape to the shape of the value itself: a shape that is computed."""
    value = b.pick("float32", "int64", rank=(1, 5), fits=lambda v: v.is_known and 0 not in v.shape)
    shape = b.add("Shape", [value], Value("", "int64", (value.rank,), True, 64))
    moved = b.add("Transpose", [value], like(value, shape=value.shape[::-1]))
    b.add("Reshape", [moved, shape], like(value))


def filled(b: Builder) -> None:
    """A tensor of one number, of a shape that another value has."""
    value = b.pick(rank=(0, 4))
    shape = b.add("Shape", [value], Value("", "int64", (value.rank,), True, 64))
    b.add("ConstantOfShape", [shape], Value("", "float32", value.shape, True, 0))


def triangular(b: Builder) -> None:
    """The upper or the lower triangle."""
    value = b.pick("float32", "int64", rank=(2, 4))
    if b.opset < 14:
        raise NoFitError
    shift = b.constant(b.rng.choice([-1, 0, 1]), "int64")
    b.add("Trilu", [value, shift], like(value), upper=b.rng.randint(0, 1))


def found(b: Builder) -> None:
    """Positions of what is not zero: only a run tells how many."""
    value = b.pick("bool", "int64", "float32", rank=(1, 3), exact=True)
    if value.dtype == "bool" and value.rank == 1 and b.rng.random() < 0.5:
        data = b.pick(
            "float32", "int64", rank=(1, 3), fits=lambda v: v.is_known and v.shape[0] == value.shape[0]
        )
        b.add("Compress", [data, value], like(data, shape=replaced(data.shape, 0, None)), axis=0)
        return
    b.add("NonZero", [value], Value("", "int64", (value.rank, None), True, 16))


def unique(b: Builder) -> None:
    """Different numbers, sorted, and where each is."""
    value = b.pick("int64", "float32", rank=(1, 2), exact=True)
    flat = Value("", "int64", (None,), True, 64)
    extra = b.rng.choice([[], [flat], [flat, flat], [flat, flat, flat]])
    b.add("Unique", [value], like(value, shape=(None,)), *extra, sorted=1)


def one_hot(b: Builder) -> None:
    """A row of zeros with a one."""
    value = b.pick("int64", rank=(1, 3), exact=True, fits=lambda v: v.is_known and v.bound <= 8)
    numbers = b.constant([0.0, 1.0], "float32")
    shape = (*value.shape, 5)
    b.add("OneHot", [value, b.constant(5, "int64"), numbers], Value("", "float32", shape, True, 1))


def blocks(b: Builder) -> None:
    """Channels into space, or space into channels."""
    value = b.pick(
        "float32", rank=(4, 4), fits=lambda v: all(isinstance(s, int) and s for s in v.shape[1:])
    )
    batch, channels, height, width = value.shape
    assert isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)
    if channels % 4 == 0 and b.rng.random() < 0.5:
        shape: Shape = (batch, channels // 4, height * 2, width * 2)
        b.add(
            "DepthToSpace",
            [value],
            like(value, shape=shape),
            blocksize=2,
            mode=b.rng.choice(["DCR", "CRD"]),
        )
    elif height % 2 == 0 and width % 2 == 0:
        shape = (batch, channels * 4, height // 2, width // 2)
        b.add("SpaceToDepth", [value], like(value, shape=shape), blocksize=2)
    else:
        raise NoFitError


def reversed_rows(b: Builder) -> None:
    """Sequences turned around up to their lengths."""
    value = b.pick("float32", rank=(2, 4), fits=lambda v: v.is_fixed and 0 not in v.shape)
    lengths = b.constant(
        [b.rng.randint(1, int(value.shape[0] or 1)) for _ in range(int(value.shape[1] or 1))], "int64"
    )
    b.add("ReverseSequence", [value, lengths], like(value), time_axis=0, batch_axis=1)


RECIPES: tuple[Callable[[Builder], None], ...] = (
    *(
        transposed,
        transposed,
        reshaped,
        reshaped,
        flattened,
        kept_first,
        squeezed,
        unsqueezed,
        expanded,
    ),
    *(
        tiled,
        concatenated,
        concatenated,
        split,
        split,
        sliced,
        sliced,
        gathered,
        looked_up,
        by_elements,
    ),
    *(
        by_positions,
        padded,
        measured,
        reshaped_alike,
        filled,
        triangular,
        found,
        unique,
        one_hot,
        blocks,
    ),
    *(reversed_rows,),
)

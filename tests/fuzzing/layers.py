"""Recipes of operators that add up: reductions, products, convolutions, pools, norms, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzzing.builder import Builder, NoFitError, Shape, Size, Value, like, replaced

_REDUCED = {
    "ReduceSum": 13, "ReduceMean": 18, "ReduceMax": 18, "ReduceMin": 18, "ReduceL1": 18, "ReduceL2": 18,
    "ReduceLogSumExp": 18, "ReduceSumSquare": 18,
}  # fmt: skip


def _fixed(value: Value) -> bool:
    return value.is_fixed and 0 not in value.shape


def reduced(b: Builder) -> None:
    """Some axes, or all, as one number."""
    op, by_input = b.rng.choice(list(_REDUCED.items()))
    value = b.pick("float32", rank=(0, 5), fits=lambda v: v.is_known and 0 not in v.shape)
    keep = b.rng.randint(0, 1)
    axes = sorted(b.rng.sample(range(value.rank), b.rng.randint(0, value.rank)))
    gone = axes or list(range(value.rank))
    shape: list[Size] = [1 if axis in gone else size for axis, size in enumerate(value.shape)]
    if not keep:
        shape = [size for axis, size in enumerate(shape) if axis not in gone]
    given, attributes = [value], {"keepdims": keep}
    if axes and b.opset >= by_input:
        given.append(b.constant(axes, "int64"))
    elif axes:
        attributes["axes"] = axes
    is_exact = value.exact and op in ("ReduceMax", "ReduceMin")
    bound = value.bound if is_exact else 100 * max(1.0, value.bound)
    b.add(op, given, like(value, shape=tuple(shape), exact=is_exact, bound=bound), **attributes)


def extreme(b: Builder) -> None:
    """Where the largest or smallest number is, or several of them."""
    value = b.pick(
        "float32", rank=(1, 4), fits=lambda v: v.distinct and v.is_known and 0 not in v.shape
    )
    axis = b.axis(value, fixed=True)
    size = value.shape[axis]
    assert isinstance(size, int)
    if b.rng.random() < 0.5:
        count = b.rng.randint(1, size)
        shape = replaced(value.shape, axis, count)
        places = Value("", "int64", shape, True, 64)
        largest = b.rng.randint(0, 1)
        given = [value, b.constant([count], "int64")]
        b.add("TopK", given, like(value, shape=shape), places, axis=axis, largest=largest)
    else:
        shape = replaced(value.shape, axis, 1)
        b.add(
            b.rng.choice(["ArgMax", "ArgMin"]), [value], Value("", "int64", shape, True, 64), axis=axis
        )


def summed(b: Builder) -> None:
    """Running sums."""
    value = b.pick("float32", "int64", rank=(1, 4))
    axis = b.constant(b.axis(value), "int64")
    made = like(value, exact=value.dtype == "int64" and value.exact, bound=16 * value.bound)
    flags = {"exclusive": b.rng.randint(0, 1), "reverse": b.rng.randint(0, 1)}
    b.add("CumSum", [value, axis], made, **flags)


def normalized(b: Builder) -> None:
    """Softmax and its logarithm."""
    value = b.pick("float32", rank=(1, 4), fits=lambda v: v.is_known and 0 not in v.shape)
    op = b.rng.choice(["Softmax", "Softmax", "LogSoftmax"])
    b.add(op, [value], like(value, exact=False, bound=2 * value.bound + 8), axis=b.axis(value))


def product(b: Builder) -> None:
    """A matrix product with a weight, or of two values."""
    value = b.pick(
        "float32", rank=(1, 4), fits=lambda v: isinstance(v.shape[-1], int) and v.shape[-1] > 0
    )
    depth, width = value.shape[-1], b.rng.choice([1, 3, 4, 8])
    assert isinstance(depth, int)
    made = like(value, shape=(*value.shape[:-1], width), exact=False, bound=depth * value.bound)
    if b.rng.random() < 0.25 and value.rank >= 2 and value.is_known:
        order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
        turned = b.add(
            "Transpose", [value], like(value, shape=tuple(value.shape[a] for a in order)), perm=order
        )
        square = (*value.shape[:-1], value.shape[-2])
        b.add(
            "MatMul",
            [value, turned],
            like(value, shape=square, exact=False, bound=depth * value.bound**2),
        )
        return
    b.add("MatMul", [value, b.constant(b.array([depth, width]))], made)


def affine(b: Builder) -> None:
    """Gemm with factors, a turned weight and a bias that is broadcast."""
    value = b.pick(
        "float32", rank=(2, 2), fits=lambda v: isinstance(v.shape[1], int) and v.shape[1] > 0
    )
    depth, width, turned = value.shape[1], b.rng.choice([1, 3, 4]), b.rng.randint(0, 1)
    assert isinstance(depth, int)
    weight = b.constant(b.array([width, depth] if turned else [depth, width]))
    bias = (
        [b.constant(b.array(b.rng.choice([[width], [1, width], [1], []])))]
        if b.rng.random() < 0.8
        else []
    )
    made = like(value, shape=(value.shape[0], width), exact=False, bound=depth * value.bound + 1)
    b.add("Gemm", [value, weight, *bias], made, transB=turned, alpha=b.rng.choice([1.0, 0.5]), beta=1.0)


def einsum(b: Builder) -> None:
    """A product of a value with a weight in Einstein's notation."""
    value = b.pick("float32", rank=(3, 3), fits=_fixed)
    i, j, k = (int(s or 1) for s in value.shape)
    text, other, shape = b.rng.choice(
        [
            ("abc,cd->abd", (k, 2), (i, j, 2)),
            ("abc,bd->acd", (j, 2), (i, k, 2)),
            ("abc,ac->ab", (i, k), (i, j)),
        ]
    )
    weight = b.constant(b.array(other))
    b.add(
        "Einsum",
        [value, weight],
        like(value, shape=shape, exact=False, bound=16 * value.bound),
        equation=text,
    )


def _image(b: Builder) -> tuple[Value, int, int]:
    """A value with batch, channels and one to three axes of space; its channels; how many axes."""
    value = b.pick(
        "float32",
        rank=(3, 5),
        fits=lambda v: all(isinstance(s, int) and s > 0 for s in v.shape[1:]) and v.shape[0] != 0,
    )
    channels = value.shape[1]
    assert isinstance(channels, int)
    return value, channels, value.rank - 2


def _window(b: Builder, sizes: Shape) -> tuple[list[int], list[int], list[int], list[int], Shape]:
    """Kernel, strides, dilations, pads, and the sizes that come out."""
    kernel, strides, dilations, pads, out = [], [], [], [], []
    for size in sizes:
        assert isinstance(size, int)
        extent = b.rng.choice([1, 2, 3])
        dilation = b.rng.choice([1, 1, 2])
        reach = dilation * (extent - 1) + 1
        begin, end = (b.rng.randint(0, extent - 1) for _ in range(2)) if extent > 1 else (0, 0)
        if size + begin + end < reach:
            extent, dilation, reach, begin, end = 1, 1, 1, 0, 0
        stride = b.rng.choice([1, 1, 2])
        kernel.append(extent)
        strides.append(stride)
        dilations.append(dilation)
        pads.append((begin, end))
        out.append((size + begin + end - reach) // stride + 1)
    return kernel, strides, dilations, [p[0] for p in pads] + [p[1] for p in pads], tuple(out)


def convolution(b: Builder) -> None:
    """One to three axes of space; groups, strides, dilations and uneven pads."""
    value, channels, _ = _image(b)
    group = b.rng.choice([g for g in (1, 1, channels, 2) if channels % g == 0])
    made = group * b.rng.choice([1, 2, 3])
    kernel, strides, dilations, pads, out = _window(b, value.shape[2:])
    weight = b.constant(b.array([made, channels // group, *kernel]))
    bias = [b.constant(b.array([made]))] if b.rng.random() < 0.6 else []
    spec = like(value, shape=(value.shape[0], made, *out), exact=False, bound=16 * value.bound)
    b.add(
        "Conv",
        [value, weight, *bias],
        spec,
        group=group,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )


def transposed_convolution(b: Builder) -> None:
    """The opposite direction, with strides, pads and output padding."""
    value, channels, axes = _image(b)
    if axes == 3:
        raise NoFitError
    kernel = [b.rng.choice([1, 2, 3]) for _ in range(axes)]
    strides = [b.rng.choice([1, 2]) for _ in range(axes)]
    extra = [b.rng.randrange(stride) for stride in strides]
    out = tuple(
        (int(size or 0) - 1) * stride + reach + more
        for size, stride, reach, more in zip(value.shape[2:], strides, kernel, extra, strict=True)
    )
    made = b.rng.choice([1, 2, 3])
    weight = b.constant(b.array([channels, made, *kernel]))
    spec = like(value, shape=(value.shape[0], made, *out), exact=False, bound=16 * value.bound)
    b.add(
        "ConvTranspose",
        [value, weight],
        spec,
        kernel_shape=kernel,
        strides=strides,
        output_padding=extra,
    )


def pooled(b: Builder) -> None:
    """The largest number or the mean of a window, or of all the space."""
    value, _, axes = _image(b)
    if b.rng.random() < 0.3:
        op = b.rng.choice(["GlobalAveragePool", "GlobalMaxPool"])
        b.add(op, [value], like(value, shape=(*value.shape[:2], *(1,) * axes), exact=False))
        return
    kernel, strides, _, pads, _ = _window(b, value.shape[2:])
    rounded = b.rng.choice([0, 0, 1])
    out = []
    for axis, size in enumerate(value.shape[2:]):
        assert isinstance(size, int)
        room = size + pads[axis] + pads[axis + axes] - kernel[axis]
        if room < 0:
            raise NoFitError
        count = -(-room // strides[axis]) + 1 if rounded else room // strides[axis] + 1
        if rounded and (count - 1) * strides[axis] >= size + pads[axis]:
            raise NoFitError  # the last window would begin in the padding
        out.append(count)
    spec = like(value, shape=(*value.shape[:2], *out), exact=False)
    settings = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": rounded}
    if b.rng.random() < 0.5:
        b.add("MaxPool", [value], like(spec, exact=value.exact), **settings)
    else:
        b.add("AveragePool", [value], spec, count_include_pad=b.rng.randint(0, 1), **settings)


def normed(b: Builder) -> None:
    """Normalization of batches, instances, layers, groups, neighbors or lengths."""
    value, channels, _ = _image(b)
    vectors = [b.constant(b.array([channels], low=0.2)) for _ in range(4)]
    ops = [
        "BatchNormalization",
        "BatchNormalization",
        "InstanceNormalization",
        "LRN",
        "LpNormalization",
    ]
    if b.opset >= 17:
        ops.append("LayerNormalization")
    op = b.rng.choice(ops)
    made = like(value, exact=False, bound=4 * value.bound + 8)
    if op == "BatchNormalization":
        b.add(op, [value, *vectors], made)
    elif op == "InstanceNormalization" and np.prod([int(s or 1) for s in value.shape[2:]]) > 2:
        b.add(op, [value, *vectors[:2]], made, epsilon=1e-2)
    elif op == "LRN" and value.rank == 4:
        b.add(op, [value], made, size=3, alpha=0.1)
    elif op == "LpNormalization":
        more = b.add(
            "Exp",
            [b.add("Tanh", [value], like(value, exact=False, bound=1))],
            like(value, exact=False, bound=3),
        )
        b.add(op, [more], made, axis=b.axis(value), p=b.rng.choice([1, 2]))
    elif op == "LayerNormalization" and isinstance(value.shape[-1], int) and value.shape[-1] > 2:
        size = value.shape[-1]
        b.add(
            op,
            [value, b.constant(b.array([size])), b.constant(b.array([size]))],
            made,
            axis=-1,
            epsilon=1e-2,
        )
    else:
        raise NoFitError


def resized(b: Builder) -> None:
    """A larger or smaller image."""
    value = b.pick("float32", rank=(4, 4), fits=_fixed)
    batch, channels, height, width = (int(s or 1) for s in value.shape)
    sizes = [batch, channels, b.rng.choice([height, 2 * height]), b.rng.choice([width, 2 * width])]
    mode, place = b.rng.choice(
        [
            ("nearest", "asymmetric"),
            ("linear", "half_pixel"),
            ("linear", "asymmetric"),
            ("linear", "align_corners"),
        ]
    )
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    given = [value, None, None, b.constant(sizes, "int64")]
    b.add(
        "Resize",
        given,
        like(value, shape=tuple(sizes), exact=False),
        mode=mode,
        coordinate_transformation_mode=place,
        **more,
    )


def recurrent(b: Builder) -> None:
    """LSTM, GRU or RNN, in one or both directions; some outputs are left out."""
    value = b.pick("float32", rank=(3, 3), fits=_fixed)
    steps, batch, depth = (int(s or 1) for s in value.shape)
    op, gates = b.rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = b.rng.choice(["forward", "reverse", "bidirectional"])
    ways, width = 1 + (direction == "bidirectional"), 2
    given: list[Value | None] = [
        value,
        b.constant(b.array([ways, gates * width, depth])),
        b.constant(b.array([ways, gates * width, width])),
    ]
    if b.rng.random() < 0.5:
        given.append(b.constant(b.array([ways, 2 * gates * width])))
    whole = like(value, shape=(steps, ways, batch, width), exact=False, bound=1)
    last = like(value, shape=(ways, batch, width), exact=False, bound=1)
    cell = like(last, bound=8)
    outputs = b.rng.choice(
        [[whole], [whole, last], [None, last], [whole, last, cell] if op == "LSTM" else [whole]]
    )
    more = {"linear_before_reset": b.rng.randint(0, 1)} if op == "GRU" else {}
    b.add(op, given, *outputs, hidden_size=width, direction=direction, **more)


def quantized(b: Builder) -> None:
    """To integers of eight bits and back."""
    value = b.pick("float32", rank=(1, 4), exact=True, fits=lambda v: v.is_known and v.distinct)
    scale = b.constant(np.float32(0.0317))
    zero = b.constant(b.rng.choice([0, 3, 128]), "uint8")
    small = b.add("QuantizeLinear", [value, scale, zero], like(value, dtype="uint8", bound=255))
    b.add("DequantizeLinear", [small, scale, zero], like(value, exact=False, bound=9))


def integer_product(b: Builder) -> None:
    """A product of integers of eight bits."""
    value = b.pick_or_make(
        (2, 4), "uint8", rank=(2, 3), fits=lambda v: isinstance(v.shape[-1], int) and v.shape[-1] > 0
    )
    width = b.rng.choice([2, 4])
    weight = b.constant(b.array([int(value.shape[-1] or 1), width], "int8"))
    shape = (*value.shape[:-1], width)
    b.add(
        "MatMulInteger", [value, weight], like(value, dtype="int32", shape=shape, exact=True, bound=900)
    )


RECIPES: tuple[Callable[[Builder], None], ...] = (
    *(
        reduced,
        reduced,
        reduced,
        extreme,
        extreme,
        summed,
        normalized,
        product,
        product,
        affine,
        einsum,
    ),
    *(
        convolution,
        convolution,
        convolution,
        transposed_convolution,
        pooled,
        pooled,
        normed,
        normed,
        resized,
    ),
    *(recurrent, quantized, integer_product),
)

"""Recipes of known operators with attributes, inputs and outputs that few models give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzzing.builder import LARGEST, Builder, NoFitError, Size, Value, like, replaced

_SPACE = 4  # axes of an image with its batch and channels
_PADS_AS_INPUT = 18  # the opset since when Pad names its axes


def _fixed(value: Value) -> bool:
    return value.is_fixed and 0 not in value.shape


def _sizes(value: Value) -> list[int]:
    return [int(size or 1) for size in value.shape]


def _image(b: Builder) -> tuple[Value, list[int]]:
    value = b.pick_or_make((1, 4, 4, 6), "float32", rank=(_SPACE, _SPACE), fits=_fixed)
    return value, _sizes(value)


def padded_by_itself(b: Builder) -> None:
    """Convolutions and pools whose pads follow from a word; a kernel that only the weight tells."""
    value, (batch, channels, *space) = _image(b)
    word = b.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    kernel = [b.rng.choice([1, 2, 3]) for _ in space]
    strides = [b.rng.choice([1, min(2, extent)]) for extent in kernel]
    out = [
        (size - k) // s + 1 if word == "VALID" else math.ceil(size / s)
        for size, k, s in zip(space, kernel, strides, strict=True)
    ]
    if min(out) < 1:
        raise NoFitError
    made = like(value, shape=(batch, channels, *out), exact=False, bound=16 * value.bound)
    op = b.rng.choice(["Conv", "MaxPool", "AveragePool"])
    if op == "Conv":
        weight = b.constant(b.array([channels, channels, *kernel]))
        b.add(op, [value, weight], made, auto_pad=word, strides=strides)
    else:
        b.add(
            op,
            [value],
            like(made, bound=value.bound),
            kernel_shape=kernel,
            auto_pad=word,
            strides=strides,
        )


def with_places(b: Builder) -> None:
    """A pool that also says where its maxima are, and what puts them back."""
    value = b.pick_or_make(
        (1, 2, 4, 4),
        "float32",
        rank=(_SPACE, _SPACE),
        exact=True,
        fits=lambda v: _fixed(v) and v.distinct,
    )
    batch, channels, height, width = _sizes(value)
    if height % 2 or width % 2:
        raise NoFitError
    shape = (batch, channels, height // 2, width // 2)
    places = Value("", "int64", shape, True, 4096)
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    made = b.add("MaxPool", [value], like(value, shape=shape), places, **window)
    if b.rng.random() < 0.5:
        b.add("MaxUnpool", [made, b.values[-1]], like(value), **window)


def opposite(b: Builder) -> None:
    """A transposed convolution with groups, dilations, uneven pads, or the shape that it shall make."""
    value, (batch, channels, height, width) = _image(b)
    groups = b.rng.choice([g for g in (1, 2, channels) if channels % g == 0])
    weight = b.constant(b.array([channels, 2, 3, 3]))
    more: dict[str, Any] = {"strides": [2, 2], "group": groups}
    out = [2 * (height - 1) + 3, 2 * (width - 1) + 3]
    kind = b.rng.choice(["pads", "dilations", "shape", "word"])
    if kind == "pads":
        more["pads"], out = [1, 0, 0, 1], [size - 1 for size in out]
    elif kind == "dilations":
        more["dilations"], out = [2, 1], [out[0] + 2, out[1]]
    elif kind == "shape":
        out = [2 * height, 2 * width]
        more["output_shape"] = out
    else:
        out = [2 * height, 2 * width]
        more["auto_pad"] = b.rng.choice(["SAME_UPPER", "SAME_LOWER"])
    made = like(value, shape=(batch, 2 * groups, *out), exact=False, bound=16 * value.bound)
    b.add("ConvTranspose", [value, weight], made, **more)


def scaled(b: Builder) -> None:
    """A Resize by factors, cubic, of a region, or with the ways of rounding."""
    value, (batch, channels, height, width) = _image(b)
    up = b.rng.choice([[2.0, 2.0], [1.0, 3.0], [0.5, 0.5], [1.5, 2.0]])
    out = [math.floor(size * by) for size, by in zip((height, width), up, strict=True)]
    if min(out) < 1 or b.opset < 11:
        raise NoFitError
    mode, place, more = b.rng.choice(
        [
            ("cubic", "half_pixel", {"cubic_coeff_a": -0.5}),
            ("cubic", "asymmetric", {"exclude_outside": 1}),
            ("linear", "pytorch_half_pixel", {}),
            ("nearest", "asymmetric", {"nearest_mode": "ceil"}),
            ("nearest", "half_pixel", {"nearest_mode": "round_prefer_ceil"}),
            ("linear", "tf_crop_and_resize", {"extrapolation_value": 0.5}),
        ]
    )
    roi = b.constant([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9] if place.startswith("tf") else [], "float32")
    given = [value, roi, b.constant([1.0, 1.0, *up], "float32")]
    made = like(value, shape=(batch, channels, *out), exact=False, bound=4 * value.bound)
    b.add("Resize", given, made, mode=mode, coordinate_transformation_mode=place, **more)


def mixed_rows(b: Builder) -> None:
    """A recurrent layer with lengths, first states, peepholes, other activations or a bound."""
    value = b.pick_or_make((3, 2, 4), "float32", rank=(3, 3), fits=_fixed)
    steps, batch, depth = _sizes(value)
    op, gates = b.rng.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    width = 2
    lengths = b.constant([b.rng.randint(1, steps) for _ in range(batch)], "int32")
    first = b.constant(b.array([1, batch, width]))
    given: list[Value | None] = [
        value,
        b.constant(b.array([1, gates * width, depth])),
        b.constant(b.array([1, gates * width, width])),
        b.rng.choice([None, b.constant(b.array([1, 2 * gates * width]))]),
        b.rng.choice([None, lengths]),
        first,
    ]
    more: dict[str, Any] = {"hidden_size": width}
    if op == "LSTM":
        given.append(b.constant(b.array([1, batch, width])))
        if b.rng.random() < 0.5:
            given.append(b.constant(b.array([1, 3 * width])))
    if b.rng.random() < 0.4:
        kinds = {"LSTM": ["Sigmoid", "Relu", "Tanh"], "GRU": ["Sigmoid", "Relu"], "RNN": ["Relu"]}
        more["activations"] = kinds[op]
    if b.rng.random() < 0.3:
        more["clip"] = 2.0
    whole = like(value, shape=(steps, 1, batch, width), exact=False, bound=100)
    last = like(value, shape=(1, batch, width), exact=False, bound=100)
    b.add(op, given, *b.rng.choice([[whole], [whole, last], [None, last]]), **more)


def reduced_oddly(b: Builder) -> None:
    """Reductions that do nothing without axes, keep no axis, or take the last of equals."""
    value = b.pick("float32", "int64", "int32", rank=(1, 4), fits=_fixed)
    op = b.rng.choice(["ReduceSum", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin"])
    if op.startswith("Arg"):
        if not (value.exact and value.dtype == "float32"):
            raise NoFitError
        axis = b.axis(value)
        shape = tuple(size for a, size in enumerate(value.shape) if a != axis % value.rank)
        made = Value("", "int64", shape, True, 64)
        b.add(op, [value], made, axis=axis, keepdims=0, select_last_index=b.rng.randint(0, 1))
        return
    if op == "ReduceSum" and value.dtype == "float32":
        value = b.pick("int64", "float32", rank=(1, 4), fits=_fixed)
    none = b.constant(np.zeros(0), "int64")
    whole = b.rng.random() < 0.5
    shape = value.shape if whole else tuple(1 for _ in value.shape)
    is_exact = value.exact and value.dtype != "float32"
    b.add(
        op,
        [value, none],
        like(value, shape=shape, exact=is_exact, bound=256 * value.bound),
        noop_with_empty_axes=int(whole),
    )


def quantized_oddly(b: Builder) -> None:
    """Scales for each channel, signed or sixteen bits, and no zero point."""
    value = b.pick("float32", rank=(2, 4), exact=True, fits=lambda v: _fixed(v) and v.distinct)
    axis = b.rng.randrange(value.rank)
    size = int(value.shape[axis] or 1)
    dtype = b.rng.choice(["int8", "uint8", "int16", "uint16"])
    scale = b.constant(b.array([size], low=0.5) * 0.04 + 0.03)
    zero = b.constant(np.zeros(size), dtype)
    given = [value, scale, zero]
    small = b.add("QuantizeLinear", given, like(value, dtype=dtype, exact=False, bound=255), axis=axis)
    b.add("DequantizeLinear", [small, scale, zero], like(value, exact=False, bound=16), axis=axis)


def gathered_in_batches(b: Builder) -> None:
    """Slices by position in each batch; pads of some axes; an edge that wraps around."""
    if b.rng.random() < 0.5:
        value = b.pick("float32", "int64", rank=(2, 3), fits=_fixed)
        first, second, *rest = _sizes(value)
        rows = b.array([first, 1], "int64") % second
        b.add("GatherND", [value, b.constant(rows)], like(value, shape=(first, *rest)), batch_dims=1)
        return
    value = b.pick("float32", "int64", "uint8", rank=(1, 4), fits=_fixed)
    if b.opset < _PADS_AS_INPUT:
        raise NoFitError
    axis = b.axis(value)
    size = value.shape[axis]
    assert isinstance(size, int)
    mode = b.rng.choice(["constant", "wrap", "edge"])
    if mode == "wrap" and b.opset < _PADS_AS_INPUT + 1:
        raise NoFitError
    given = [value, b.constant([1, 1], "int64"), None, b.constant([axis], "int64")]
    b.add("Pad", given, like(value, shape=replaced(value.shape, axis, size + 2)), mode=mode)


def reshaped_oddly(b: Builder) -> None:
    """A zero that means zero, a part of a shape, equal parts by their number, and a slice without axes."""
    kind = b.rng.choice(["zero", "shape", "parts", "slice"])
    if kind == "zero":
        value = b.pick_or_make((0, 2), "float32", "int64", fits=lambda v: v.is_fixed and 0 in v.shape)
        b.add("Reshape", [value, b.constant([0, 3], "int64")], like(value, shape=(0, 3)), allowzero=1)
    elif kind == "shape":
        value = b.pick(rank=(2, 5))
        begin, end = b.rng.choice([(0, 1), (1, 2), (-1, value.rank)])
        b.add("Shape", [value], Value("", "int64", (1,), True, 64), start=begin, end=end)
    elif kind == "parts":
        value = b.pick("float32", "int64", rank=(1, 4))
        axis = b.axis(value, fixed=True)
        size = value.shape[axis]
        if not isinstance(size, int) or size < 2:
            raise NoFitError
        each = -(-size // 2)
        outputs = [like(value, shape=replaced(value.shape, axis, s)) for s in (each, size - each)]
        b.add("Split", [value], *outputs, axis=axis, num_outputs=2)
    else:
        value = b.pick("float32", "int32", "uint8", rank=(1, 3), fits=_fixed)
        shape: tuple[Size, ...] = (max(0, int(value.shape[0] or 0) - 1), *value.shape[1:])
        b.add(
            "Slice",
            [value, b.constant([1], "int64"), b.constant([2**31], "int64")],
            like(value, shape=shape),
        )


def trained(b: Builder) -> None:
    """A normalization that learns, with its running values; a Dropout that says that it does not."""
    value, (_, channels, *_) = _image(b)
    if b.rng.random() < 0.5:
        off = [b.constant(np.float32(0.5)), b.constant(False, "bool")]
        b.add("Dropout", [value, *off], like(value))
        return
    if b.opset < 14 or np.prod(_sizes(value)) // channels < 4:
        raise NoFitError
    vectors = [b.constant(b.array([channels], low=0.2)) for _ in range(4)]
    # Too large to be read: ONNX Runtime keeps such values from run to run (docs/runtime-faults.md).
    running = Value("", "float32", (channels,), False, 2 * LARGEST)
    made = like(value, exact=False, bound=4 * value.bound + 8)
    outputs = [made, running, running]
    b.add(
        "BatchNormalization", [value, *vectors], *outputs, training_mode=1, epsilon=1e-2, momentum=0.5
    )


def products(b: Builder) -> None:
    """Gemm with a turned first matrix and odd factors, vectors in MatMul, and other Einstein sums."""
    kind = b.rng.choice(["gemm", "vector", "sum", "diagonal"])
    if kind == "gemm":
        value = b.pick("float32", "float64", rank=(2, 2), fits=_fixed)
        depth, rows = _sizes(value)
        weight = b.constant(b.array([depth, 3], value.dtype))
        given = [value, weight] + [b.constant(b.array([rows, 1], value.dtype))] * (
            b.opset < 11 or b.rng.randint(0, 1)
        )
        made = like(value, shape=(rows, 3), exact=False, bound=2 * depth * value.bound + 2)
        b.add("Gemm", given, made, transA=1, alpha=-0.5, beta=b.rng.choice([0.0, 2.0]))
    elif kind == "vector":
        value = b.pick("float32", rank=(1, 3), fits=_fixed)
        depth = int(value.shape[-1] or 1)
        made = like(value, shape=value.shape[:-1], exact=False, bound=depth * value.bound)
        b.add("MatMul", [value, b.constant(b.array([depth]))], made)
    else:
        value = b.pick_or_make(
            (3, 3), "float32", rank=(2, 2), fits=lambda v: _fixed(v) and v.shape[0] == v.shape[1]
        )
        text, shape = ("ii->i", value.shape[:1]) if kind == "diagonal" else ("ij->", ())
        b.add(
            "Einsum",
            [value],
            like(value, shape=shape, exact=False, bound=64 * value.bound),
            equation=text,
        )


RECIPES: tuple[Callable[[Builder], None], ...] = (
    *(padded_by_itself, padded_by_itself, with_places, opposite, opposite, scaled, scaled, mixed_rows),
    *(mixed_rows, reduced_oddly, reduced_oddly, quantized_oddly, gathered_in_batches),
    *(reshaped_oddly, reshaped_oddly, trained, products, products),
)

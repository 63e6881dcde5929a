"""Recipes of operators that few models have: signals, boxes, losses, and some of other domains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzzing.builder import Builder, NoFitError, Value, like

# Pools and regions of this opset have no kernel in ONNX Runtime.
_NO_KERNEL_SINCE = 22
DOMAINS = {"ai.onnx.ml": 3, "com.microsoft": 1}
_SPACE = 4  # axes of an image with its batch and channels


def _fixed(value: Value) -> bool:
    return value.is_fixed and 0 not in value.shape


def _sizes(value: Value) -> list[int]:
    return [int(size or 1) for size in value.shape]


def _image(b: Builder) -> tuple[Value, list[int]]:
    value = b.pick_or_make((1, 4, 4, 6), "float32", rank=(_SPACE, _SPACE), fits=_fixed)
    return value, _sizes(value)


def bounded_functions(b: Builder) -> None:
    """Functions that are steep or not defined outside some bounds."""
    value = b.pick("float32")
    small = b.add("Tanh", [value], like(value, exact=False, bound=1))
    op = b.rng.choice(["Tan", "Acosh", "ReduceLogSum", "ReduceProd", "Swish", "CumProd"])
    made = like(value, exact=False, bound=4)
    if op == "Tan":
        b.add(op, [small], made)
    elif op == "Swish":
        b.add(op, [small], made, alpha=b.rng.choice([1.0, 1.702]))
    elif op == "CumProd":
        if not value.rank:
            raise NoFitError
        b.add(op, [small, b.constant(0, "int64")], made)
    else:
        size = b.add("Abs", [small], like(small))
        away = b.add("Add", [size, b.constant(np.float32(1.0))], like(small, bound=2))
        if op == "Acosh":
            b.add(op, [away], made)
        else:
            if not _fixed(value) or np.prod(_sizes(value)) > 64:
                raise NoFitError
            half = b.add("Mul", [away, b.constant(np.float32(0.5))], like(small, bound=1))
            b.add(op, [half], Value("", "float32", (), False, 8), keepdims=0)


def ranged(b: Builder) -> None:
    """Numbers that follow each other; their count is known only to a run where an input decides it."""
    counts = [v for v in b.inputs if v.dtype == "int64" and not v.shape]
    if counts and b.rng.random() < 0.6:
        ends = [b.constant(0, "int64"), b.rng.choice(counts), b.constant(b.rng.choice([1, 2]), "int64")]
        b.add("Range", ends, Value("", "int64", (None,), True, 8))
        return
    dtype = b.rng.choice(["int64", "float32", "int32"])
    ends = [b.constant(number, dtype) for number in b.rng.choice([(0, 4, 1), (5, 0, -2), (2, 2, 1)])]
    count = len(range(*(int(b.known[v.name]) for v in ends)))
    b.add("Range", ends, Value("", dtype, (count,), True, 8))


def cropped(b: Builder) -> None:
    """The middle, or zeros around it."""
    value = b.pick("float32", rank=(1, 4), fits=_fixed)
    axis = b.rng.randrange(value.rank)
    size = b.rng.choice([1, 2, 5])
    shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
    b.add("CenterCropPad", [value, b.constant([size], "int64")], like(value, shape=shape), axes=[axis])


def norms(b: Builder) -> None:
    """Normalization over groups, over variance, by the root of a mean, and lengths of all the space."""
    value, (batch, channels, *_) = _image(b)
    op = b.rng.choice(
        [
            "GroupNormalization",
            "RMSNormalization",
            "MeanVarianceNormalization",
            "GlobalLpPool",
            "LpPool",
        ]
    )
    made = like(value, exact=False, bound=4 * value.bound + 8)
    if op == "GroupNormalization":
        groups = b.rng.choice([g for g in (1, 2, channels) if channels % g == 0])
        count = channels if b.opset > 20 else groups
        weights = [b.constant(b.array([count], low=0.2)) for _ in range(2)]
        b.add(op, [value, *weights], made, num_groups=groups, epsilon=1e-2)
    elif op == "RMSNormalization":
        width = int(value.shape[-1] or 1)
        b.add(op, [value, b.constant(b.array([width]))], made, axis=-1, epsilon=1e-2)
    elif op == "MeanVarianceNormalization":
        if np.prod(_sizes(value)[2:]) * batch < 4:
            raise NoFitError
        b.add(op, [value], made)
    elif b.opset >= _NO_KERNEL_SINCE:
        raise NoFitError
    elif op == "GlobalLpPool":
        b.add(op, [value], like(made, shape=(*value.shape[:2], 1, 1)), p=b.rng.choice([1, 2]))
    else:
        height, width = _sizes(value)[2:]
        if min(height, width) < 2:
            raise NoFitError
        shape = (*value.shape[:2], height - 1, width - 1)
        b.add(op, [value], like(made, shape=shape), kernel_shape=[2, 2], p=b.rng.choice([1, 2]))


def sampled(b: Builder) -> None:
    """An image read where a grid says."""
    value, (batch, channels, *_) = _image(b)
    if b.opset >= 20 and b.rng.random() < 0.5:
        theta = b.constant(b.array([batch, 2, 3]))
        size = b.constant([batch, channels, 3, 2], "int64")
        grid = b.add("AffineGrid", [theta, size], Value("", "float32", (batch, 3, 2, 2), False, 3))
    else:
        grid = b.constant(0.9 * b.array([batch, 3, 2, 2]))
    mode = "linear" if b.opset >= 20 else "bilinear"
    padding = b.rng.choice(["zeros", "border", "reflection"])
    made = like(value, shape=(batch, channels, 3, 2), exact=False, bound=2 * value.bound)
    b.add(
        "GridSample",
        [value, grid],
        made,
        mode=mode,
        padding_mode=padding,
        align_corners=b.rng.randint(0, 1),
    )


def boxes(b: Builder) -> None:
    """Means or maxima of regions of an image, and boxes that do not overlap much."""
    if b.rng.random() < 0.4:
        corners = np.sort(b.array([1, 5, 2, 2], low=0.0), axis=2).reshape(1, 5, 4)
        scores = b.pick_or_make(
            (1, 2, 5),
            "float32",
            rank=(3, 3),
            exact=True,
            fits=lambda v: v.distinct and v.is_fixed and v.shape[0] == 1,
        )
        count = int(scores.shape[2] or 0)
        if not count or not scores.shape[1]:
            raise NoFitError
        corners = np.resize(corners, (1, count, 4)).astype(np.float32)
        limits = [b.constant([3], "int64"), b.constant([0.5], "float32"), b.constant([0.0], "float32")]
        b.add(
            "NonMaxSuppression",
            [b.constant(corners), scores, *limits],
            Value("", "int64", (None, 3), True, 64),
        )
        return
    value, (batch, channels, height, width) = _image(b)
    if b.opset >= _NO_KERNEL_SINCE:
        raise NoFitError
    rows = np.array([[0, 0, width * 0.6, height * 0.7], [0.3, 0.2, width, height]], np.float32)
    if b.rng.random() < 0.5:
        made = like(value, shape=(2, channels, 2, 3), exact=False)
        which = b.constant([0, batch - 1], "int64")
        mode = b.rng.choice(["avg", "max"])
        b.add(
            "RoiAlign",
            [value, b.constant(rows), which],
            made,
            output_height=2,
            output_width=3,
            mode=mode,
            sampling_ratio=1 if mode == "max" else 2,
        )
    else:
        rows = np.concatenate([[[0], [batch - 1]], np.floor(rows)], axis=1).astype(np.float32)
        made = like(value, shape=(2, channels, 2, 2))
        b.add("MaxRoiPool", [value, b.constant(rows)], made, pooled_shape=[2, 2])


def columns(b: Builder) -> None:
    """Columns put together to an image, and a determinant."""
    if b.rng.random() < 0.5:
        value = b.pick_or_make(
            (2, 3, 3), "float32", rank=(2, 4), fits=lambda v: _fixed(v) and v.shape[-1] == v.shape[-2]
        )
        if int(value.shape[-1] or 0) > 4:
            raise NoFitError
        small = b.add("Tanh", [value], like(value, exact=False, bound=1))
        b.add("Det", [small], like(value, shape=value.shape[:-2], exact=False, bound=24))
        return
    value = b.pick_or_make(
        (1, 4, 6),
        "float32",
        rank=(3, 3),
        fits=lambda v: _fixed(v) and v.shape[1] == 4 and v.shape[2] == 6,
    )
    given = [value, b.constant([3, 4], "int64"), b.constant([2, 2], "int64")]
    b.add(
        "Col2Im",
        given,
        like(value, shape=(value.shape[0], 1, 3, 4), exact=False, bound=4 * value.bound),
    )


def _is_signal(value: Value) -> bool:
    return _fixed(value) and int(value.shape[1] or 0) >= 8 and value.shape[2] == 1


def transformed(b: Builder) -> None:
    """A Fourier transform of rows or of windows of them, and windows."""
    if b.rng.random() < 0.3:
        signal = b.pick_or_make((1, 16, 1), "float32", rank=(3, 3), fits=_is_signal)
        window, hop = b.constant(b.array([8], low=0.2)), b.constant(4, "int64")
        frames, is_half = (int(signal.shape[1] or 0) - 8) // 4 + 1, b.rng.randint(0, 1)
        shape = (signal.shape[0], frames, 5 if is_half else 8, 2)
        made = like(signal, shape=shape, exact=False, bound=8 * signal.bound)
        b.add("STFT", [signal, hop, window], made, onesided=is_half)
        return
    if b.rng.random() < 0.4:
        op = b.rng.choice(["HannWindow", "HammingWindow", "BlackmanWindow"])
        made = Value("", "float32", (6,), False, 1)
        b.add(op, [b.constant(6, "int64")], made, periodic=b.rng.randint(0, 1))
        return
    value = b.pick_or_make((2, 6), "float32", rank=(2, 3), fits=_fixed)
    length = int(value.shape[-1] or 1)
    real = b.add(
        "Unsqueeze", [value, b.constant([value.rank], "int64")], like(value, shape=(*value.shape, 1))
    )
    made = like(value, shape=(*value.shape, 2), exact=False, bound=length * value.bound)
    if b.opset >= 20:
        b.add("DFT", [real, None, b.constant(value.rank - 1, "int64")], made)
    else:
        b.add("DFT", [real], made, axis=value.rank - 1)


def attended(b: Builder) -> None:
    """Attention, and positions as rotations."""
    value = b.pick_or_make(
        (1, 3, 8), "float32", rank=(3, 3), fits=lambda v: _fixed(v) and int(v.shape[2] or 1) % 4 == 0
    )
    made = like(value, exact=False, bound=value.bound)
    if b.rng.random() < 0.6:
        flags = {"is_causal": b.rng.randint(0, 1), "softcap": b.rng.choice([0.0, 2.0])}
        b.add("Attention", [value, value, value], made, q_num_heads=2, kv_num_heads=2, **flags)
        return
    batch, steps, width = _sizes(value)
    angles = [b.constant(b.array([steps, width // 4])) for _ in range(2)]
    places = b.constant(np.tile(np.arange(steps), (batch, 1)), "int64")
    b.add("RotaryEmbedding", [value, *angles, places], like(made, bound=2 * value.bound), num_heads=2)


def losses(b: Builder) -> None:
    """How far rows of numbers are from classes."""
    value = b.pick_or_make(
        (3, 4), "float32", rank=(2, 2), fits=lambda v: v.is_fixed and 0 not in v.shape
    )
    rows, classes = _sizes(value)
    labels = b.constant(b.array([rows], "int64") % classes)
    reduction = b.rng.choice(["none", "sum", "mean"])
    shape = value.shape[:1] if reduction == "none" else ()
    op = b.rng.choice(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
    made = Value("", "float32", shape, False, rows * (value.bound + 8))
    b.add(op, [value, labels], made, reduction=reduction)


def linear_quantized(b: Builder) -> None:
    """Products and convolutions of integers of eight bits, with their scales."""
    op = b.rng.choice(["DynamicQuantizeLinear", "QLinearMatMul", "ConvInteger", "QLinearConv"])
    if op == "DynamicQuantizeLinear":
        value = b.pick_or_make(
            (2, 3), "float32", exact=True, fits=lambda v: _fixed(v) and v in b.inputs
        )
        scale = Value("", "float32", (), False, 1)
        b.add(
            op,
            [value],
            like(value, dtype="uint8", exact=False, bound=255),
            scale,
            Value("", "uint8", (), False, 255),
        )
        return
    value = b.pick_or_make(
        (1, 2, 4, 4), "uint8", rank=(2, 4), exact=True, fits=lambda v: _fixed(v) and v.bound <= 255
    )
    scale, zero = b.constant(np.float32(0.05)), b.constant(b.rng.choice([0, 3]), "uint8")
    if op == "QLinearMatMul":
        weight = b.constant(b.array([int(value.shape[-1] or 1), 3], "uint8"))
        made = like(value, shape=(*value.shape[:-1], 3), exact=False, bound=255)
        b.add(op, [value, scale, zero, weight, scale, zero, scale, zero], made)
        return
    if value.rank != _SPACE:
        raise NoFitError
    weight = b.constant(b.array([2, int(value.shape[1] or 1), 1, 1], "uint8"))
    made = like(value, shape=(value.shape[0], 2, *value.shape[2:]), exact=False, bound=255)
    if op == "ConvInteger":
        b.add(op, [value, weight, zero], like(made, dtype="int32", exact=True, bound=4e4))
    else:
        b.add(op, [value, scale, zero, weight, scale, zero, scale, zero], made)


def learned(b: Builder) -> None:
    """Classical models: a scaler, a linear regressor, features taken out."""
    value = b.pick_or_make((3, 4), "float32", rank=(2, 2), fits=_fixed)
    rows, width = _sizes(value)
    kind = b.rng.choice(
        ["Scaler", "LinearRegressor", "Normalizer", "ArrayFeatureExtractor", "Binarizer"]
    )
    op = f"ai.onnx.ml::{kind}"
    if kind == "Scaler":
        b.add(
            op,
            [value],
            like(value, exact=False, bound=2 * value.bound + 1),
            offset=[0.5] * width,
            scale=[2.0] * width,
        )
    elif kind == "LinearRegressor":
        made = Value("", "float32", (rows, 1), False, width * value.bound + 1)
        b.add(op, [value], made, coefficients=[0.5] * width, intercepts=[0.1], targets=1)
    elif kind == "Normalizer":
        more = b.add("Abs", [value], like(value))
        away = b.add(
            "Add", [more, b.constant(np.float32(0.5))], like(value, exact=False, bound=value.bound + 1)
        )
        b.add(op, [away], like(value, exact=False, bound=1), norm=b.rng.choice(["MAX", "L1", "L2"]))
    elif kind == "ArrayFeatureExtractor":
        which = b.constant([b.rng.randrange(width)], "int64")
        b.add(op, [value, which], like(value, shape=(rows, 1)))
    elif value.exact and value.distinct:
        b.add(op, [value], like(value, bound=1), threshold=0.1)
    else:
        raise NoFitError


def microsoft(b: Builder) -> None:
    """Operators that ONNX Runtime adds."""
    value = b.pick_or_make((1, 3, 4), "float32", rank=(2, 3), fits=_fixed)
    width = int(value.shape[-1] or 1)
    kind = b.rng.choice(
        ["Gelu", "QuickGelu", "FusedMatMul", "BiasGelu", "SkipLayerNormalization", "Inverse"]
    )
    op = f"com.microsoft::{kind}"
    made = like(value, exact=False, bound=2 * value.bound + 1)
    if kind in ("Gelu", "QuickGelu"):
        b.add(op, [value], made)
    elif kind == "BiasGelu":
        b.add(op, [value, b.constant(b.array([width]))], made)
    elif kind == "FusedMatMul":
        weight = b.constant(b.array([3, width]))
        made = like(made, shape=(*value.shape[:-1], 3), bound=width * value.bound)
        b.add(op, [value, weight], made, transB=1, alpha=b.rng.choice([1.0, 0.5]))
    elif kind == "SkipLayerNormalization" and value.rank == 3 and width > 2:
        weights = [b.constant(b.array([width])) for _ in range(2)]
        b.add(op, [value, value, *weights], like(made, bound=16), epsilon=1e-2)
    else:
        raise NoFitError


def updated(b: Builder) -> None:
    """Slices written over, added or compared with what is there; a mask that jumps over what is false."""
    value = b.pick("float32", "int64", rank=(1, 3), fits=_fixed)
    reduction = b.rng.choice(["none", "add", "max", "min"])
    rows = b.array(_sizes(value), "int64") % int(value.shape[0] or 1)
    if reduction == "none":
        rows = np.zeros_like(rows) + np.arange(rows.shape[0]).reshape(-1, *(1,) * (value.rank - 1))
    updates = b.constant(b.array(_sizes(value), value.dtype))
    made = like(value, exact=value.exact and value.dtype == "int64", bound=8 * (value.bound + 8))
    more = {} if reduction == "none" else {"reduction": reduction}
    op = "ScatterElements" if b.opset > 10 else "Scatter"
    b.add(op, [value, b.constant(rows), updates], made, axis=0, **more)


def grown_image(b: Builder) -> None:
    """An image twice as large, as files before opset 10 had it."""
    value, (_, _, height, width) = _image(b)
    shape = (*value.shape[:2], 2 * height, 2 * width)
    scales = b.constant([1.0, 1.0, 2.0, 2.0], "float32")
    b.add(
        "Upsample", [value, scales], like(value, shape=shape), mode=b.rng.choice(["nearest", "linear"])
    )


def kept(b: Builder) -> None:
    """Elements where a truth value says so, of all axes."""
    condition = b.pick_or_make((3,), "bool", rank=(1, 1))
    data = b.pick("float32", "int64", rank=(1, 2))
    if condition.shape[0] != data.shape[0]:
        raise NoFitError
    b.add("Compress", [data, condition], like(data, shape=(None,)))


RECIPES: tuple[Callable[[Builder], None], ...] = (
    *(bounded_functions, bounded_functions, ranged, cropped, norms, norms, sampled, boxes, boxes),
    *(columns, transformed, attended, losses, linear_quantized, linear_quantized, learned),
    *(microsoft, microsoft, updated, grown_image, kept),
)

"""Recipes of operators that compute element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.fuzzing.builder import FLOATS, INTEGERS, TEXT, Builder, NoFitError, Value, broadcast, like

_SMOOTH = {
    "Sigmoid": 1, "Tanh": 1, "Softsign": 13, "Erf": 13, "Sin": 13, "Cos": 13, "Atan": 13, "Gelu": 20,
    "HardSigmoid": 13, "HardSwish": 14, "Mish": 18, "Softplus": 13, "Elu": 13, "Selu": 13, "Celu": 13,
    "LeakyRelu": 13, "Asinh": 13, "Identity": 13,
}  # fmt: skip
# Not known to ONNX Runtime for double precision.
_SINGLE_ONLY = {"Erf", "Atan", "Gelu", "HardSigmoid", "HardSwish", "Mish", "Selu", "Celu", "Elu", "Asinh",
                "LeakyRelu", "Softplus", "Softsign"}  # fmt: skip
_BY_BOUNDED = ("Asin", "Acos", "Atanh")
_BY_POSITIVE = ("Sqrt", "Log", "Reciprocal")


def smooth(b: Builder) -> None:
    """One number in, one number out."""
    op = b.rng.choice([name for name, since in _SMOOTH.items() if since <= b.opset])
    value = b.pick(*(("float32",) if op in _SINGLE_ONLY else FLOATS), fits=lambda v: True)
    b.add(op, [value], like(value, exact=value.exact and op == "Identity", bound=2 * value.bound + 1))


def growing(b: Builder) -> None:
    """Exponentials of what is small."""
    value = b.pick("float32", fits=lambda v: v.bound <= 5)
    op = b.rng.choice(["Exp", "Sinh", "Cosh"])
    b.add(op, [value], like(value, exact=False, bound=math.exp(value.bound)))


def of_positive(b: Builder) -> None:
    """Functions of positive numbers."""
    value = b.pick("float32")
    positive = b.add("Abs", [value], like(value))
    more = b.add("Add", [positive, b.constant(np.float32(0.5))], like(value, exact=False))
    b.add(b.rng.choice(_BY_POSITIVE), [more], like(value, exact=False, bound=max(2.0, value.bound)))


def of_bounded(b: Builder) -> None:
    """Functions of numbers between -1 and 1."""
    value = b.pick("float32")
    small = b.add("Tanh", [value], like(value, exact=False, bound=1))
    smaller = b.add("Mul", [small, b.constant(np.float32(0.75))], like(value, exact=False, bound=1))
    b.add(b.rng.choice(_BY_BOUNDED), [smaller], like(value, exact=False, bound=3))


def exact_unary(b: Builder) -> None:
    """Functions whose results have no rounding."""
    op = b.rng.choice(["Abs", "Neg", "Relu", "Neg", "Sign"])
    value = b.pick(*FLOATS, *INTEGERS, exact=op == "Sign")
    if op == "Relu" and value.dtype in INTEGERS:
        raise NoFitError
    b.add(op, [value], like(value))


def jumping(b: Builder) -> None:
    """Functions that jump, of exact numbers."""
    op = b.rng.choice(["Floor", "Ceil", "Round", "ThresholdedRelu", "Hardmax"])
    value = b.pick("float32", exact=True, rank=(1, 5), fits=lambda v: v.distinct)
    b.add(op, [value], like(value))


def clip(b: Builder) -> None:
    """Bounds on both sides, one or none."""
    value = b.pick("float32", *INTEGERS)
    low, high = (-0.5, 0.75) if value.dtype == "float32" else (1, 4)
    limits = [b.constant(low, value.dtype), b.constant(high, value.dtype)]
    given = b.rng.choice([limits, limits[:1], [None, limits[1]]])
    b.add("Clip", [value, *given], like(value))


def binary(b: Builder) -> None:
    """Arithmetic of two values that are broadcast."""
    one = b.pick(*FLOATS, *INTEGERS)
    two = b.beside(one)
    ops = ["Add", "Sub", "Mul", "Max", "Min"]
    if one.dtype in INTEGERS:
        ops += ["Div", "Mod"]
    op = b.rng.choice(ops)
    if op in ("Div", "Mod"):
        two = b.constant(b.rng.choice([1, 2, 3]), one.dtype)
    bound = one.bound * max(two.bound, 1) if op == "Mul" else one.bound + two.bound
    is_exact = one.exact and two.exact and (op in ("Max", "Min") or one.dtype in INTEGERS)
    first, second = (one, two) if op in ("Div", "Mod") or b.rng.random() < 0.5 else (two, one)
    shape = broadcast(one.shape, two.shape)
    b.add(op, [first, second], like(one, shape=shape, bound=bound, exact=is_exact))


def divided(b: Builder) -> None:
    """A division by what is not near zero, and powers of positive numbers."""
    one = b.pick("float32")
    two = b.beside(one)
    size = b.add("Abs", [two], like(two))
    away = b.add("Add", [size, b.constant(np.float32(0.5))], like(two, exact=False))
    shape = broadcast(one.shape, two.shape)
    if b.rng.random() < 0.7:
        b.add("Div", [one, away], like(one, shape=shape, exact=False, bound=2 * one.bound))
    else:
        power = b.constant(np.float32(b.rng.choice([0.5, 1.0, 2.0, 3.0, -1.0])))
        b.add("Pow", [away, power], like(two, exact=False, bound=(two.bound + 1) ** 3))


def variadic(b: Builder) -> None:
    """Three values at once."""
    one = b.pick("float32")
    two = b.beside(one)
    both = broadcast(one.shape, two.shape)
    three = b.constant(b.array([]))
    bound = one.bound + two.bound + 1
    op = b.rng.choice(["Sum", "Mean", "Max", "Min"])
    b.add(op, [one, three, two], like(one, shape=both, exact=False, bound=bound))


def compared(b: Builder) -> None:
    """Comparisons of exact numbers."""
    one = b.pick("float32", *INTEGERS, exact=True)
    two = b.beside(one)
    if not two.exact:
        two = b.constant(b.array([], one.dtype))
    op = b.rng.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    if op in ("LessOrEqual", "GreaterOrEqual") and b.opset < 16:
        op = "Less"
    shape = broadcast(one.shape, two.shape)
    b.add(op, [one, two], Value("", "bool", shape, True, 1))


def logical(b: Builder) -> None:
    """Truth values of truth values."""
    one = b.pick("bool")
    if b.rng.random() < 0.3:
        b.add("Not", [one], like(one))
        return
    two = b.beside(one)
    shape = broadcast(one.shape, two.shape)
    b.add(b.rng.choice(["And", "Or", "Xor"]), [one, two], like(one, shape=shape))


def bitwise(b: Builder) -> None:
    """Bits of integers."""
    one = b.pick("int32", "int64", "uint8", fits=lambda v: v.is_known and v.bound < 100)
    if one.dtype == "uint8":
        by = b.constant(b.rng.choice([0, 1, 2]), "uint8")
        b.add("BitShift", [one, by], like(one), direction="RIGHT")
        return
    if b.opset < 18:
        raise NoFitError
    two = b.beside(one)
    bound = 2 * (one.bound + two.bound) + 8
    shape = broadcast(one.shape, two.shape)
    op = b.rng.choice(["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
    b.add(op, [one, two], like(one, shape=shape, bound=bound))


def chosen(b: Builder) -> None:
    """One of two values where a truth value says so."""
    condition = b.pick("bool")
    found = [
        v
        for v in b.values
        if v.is_known and v.dtype != "bool" and broadcast(condition.shape, v.shape) is not None
    ]
    if not found:
        raise NoFitError
    one = b.rng.choice(found)
    two = b.beside(one)
    shape = broadcast(condition.shape, broadcast(one.shape, two.shape) or ())
    if shape is None or one.bound > 1e3:
        raise NoFitError
    is_exact = one.exact and two.exact
    made = like(one, shape=shape, exact=is_exact, bound=max(one.bound, two.bound))
    b.add("Where", [condition, one, two], made)


def cast(b: Builder) -> None:
    """Another type; only exact numbers become integers."""
    value = b.pick(fits=lambda v: True)
    kinds = ["float32"]
    if value.exact:
        kinds += ["int64", "int32", "bool"]
    if value.dtype in ("float32", "float64"):
        kinds += ["float64"]
    if value.dtype in (*INTEGERS, "uint8", "bool") and value.bound <= 100:
        kinds += ["uint8"] if value.dtype == "bool" else ["float64"]
    dtype = b.rng.choice([kind for kind in kinds if kind != value.dtype] or ["float32"])
    number = int(_NUMBER[dtype])
    b.add("Cast", [value], like(value, dtype=dtype, bound=max(1.0, value.bound)), to=number)


def tested(b: Builder) -> None:
    """Whether numbers are NaN or infinite."""
    value = b.pick("float32")
    op = b.rng.choice(["IsNaN", "IsInf"])
    b.add(op, [value], like(value, dtype="bool", exact=True, bound=1))


def leaky(b: Builder) -> None:
    """A slope for each channel."""
    value = b.pick("float32", rank=(1, 5))
    sizes = [
        size if isinstance(size, int) and axis == 1 else 1 for axis, size in enumerate(value.shape)
    ]
    slope = b.constant(b.array(sizes[1:] or [1]))
    b.add("PRelu", [value, slope], like(value, exact=False))


def dropped(b: Builder) -> None:
    """Dropout, which does nothing when nothing is trained; its mask is an output."""
    value = b.pick("float32")
    mask = like(value, dtype="bool", exact=True, bound=1) if b.rng.random() < 0.5 else None
    outputs = [like(value)] if mask is None else [like(value), mask]
    b.add("Dropout", [value], *outputs)


def bits(b: Builder) -> None:
    """All bits turned, and shifts to the left."""
    value = b.pick(
        "int32", "uint8", "int64", "uint32", "uint64", fits=lambda v: v.is_known and v.bound < 50
    )
    if value.dtype.startswith("u"):
        by = b.constant(b.rng.choice([0, 1, 2]), value.dtype)
        b.add("BitShift", [value, by], like(value, bound=4 * value.bound), direction="LEFT")
    else:
        b.add("BitwiseNot", [value], like(value, bound=value.bound + 1))


def alike(b: Builder) -> None:
    """The type of another value, and matrices shaped as another one."""
    value = b.pick("float32", "int64", "int32", exact=True)
    if b.rng.random() < 0.5:
        other = b.pick("float32", "int64", "bool", "float64")
        b.add("CastLike", [value, other], like(value, dtype=other.dtype))
        return
    if value.rank != 2:
        raise NoFitError
    b.add("EyeLike", [value], like(value, bound=1), k=b.rng.choice([0, 1, -1]))


def shrunk(b: Builder) -> None:
    """Small numbers become zero; those that are exact only."""
    value = b.pick("float32", exact=True, fits=lambda v: v.is_known and v.distinct)
    b.add(
        "Shrink", [value], like(value, bound=value.bound + 1), lambd=0.5, bias=b.rng.choice([0.0, 0.25])
    )


def texts(b: Builder) -> None:
    """Words compared, changed, and counted; numbers as words."""
    words = b.pick_or_make((3,), TEXT)
    kind = b.rng.choice(["equal", "concat", "normalize", "match", "label", "identity", "from numbers"])
    if kind == "equal":
        b.add("Equal", [words, b.constant(b.rng.choice(["cat", "a"]), TEXT)], like(words, dtype="bool"))
    elif kind == "concat":
        b.add("StringConcat", [words, b.constant("!", TEXT)], like(words))
    elif kind == "normalize":
        if words.rank != 1:
            raise NoFitError
        b.add(
            "StringNormalizer",
            [words],
            like(words),
            case_change_action=b.rng.choice(["UPPER", "LOWER"]),
            locale="C",
        )
    elif kind == "match":
        b.add("RegexFullMatch", [words], like(words, dtype="bool"), pattern="[a-z]+")
    elif kind == "label":
        keys = {"keys_strings": ["a", "b", "cat"], "values_int64s": [1, 2, 3], "default_int64": 0}
        b.add("ai.onnx.ml::LabelEncoder", [words], like(words, dtype="int64", bound=3), **keys)
    elif kind == "identity":
        shape = (1, *words.shape)
        b.add("Unsqueeze", [words, b.constant([0], "int64")], like(words, shape=shape))
    else:
        numbers = b.pick("int64", "bool", "int32", exact=True)
        b.add("Cast", [numbers], like(numbers, dtype=TEXT, bound=1), to=8)


_NUMBER = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9, "float64": 11}

RECIPES: tuple[Callable[[Builder], None], ...] = (
    *(
        smooth,
        smooth,
        smooth,
        growing,
        of_positive,
        of_bounded,
        exact_unary,
        exact_unary,
        jumping,
        clip,
    ),
    *(binary, binary, binary, binary, divided, variadic, compared, compared, logical, bitwise, chosen),
    *(cast, cast, tested, leaky, dropped, bits, alike, shrunk, texts),
)

"""A graph in the making: its nodes, and what is known of each of its values.

Terms: a *size* is a number, `N` (the free dimension), or None where only a run tells it. A value is *exact*
when every runtime computes it to the bit: operators that jump (rounding, comparing) read such values alone.
Its *bound* is the largest magnitude that it can have, so that nothing overflows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

N = "n"
TEXT = "object"
Size = int | str | None
Shape = tuple[Size, ...]
FLOATS = ("float32", "float64")
INTEGERS = ("int32", "int64")
LARGEST = 1e3
WORDS = ("a", "b", "cat", "Dog", "two words", "42", "")
# Operators whose later inputs were attributes before an opset.
_WERE_ATTRIBUTES: dict[str, tuple[int, tuple[str, ...]]] = {
    "Clip": (11, ("min", "max")),
    "Pad": (11, ("pads", "value")),
    "ReduceSum": (13, ("axes",)),
    "Slice": (10, ("starts", "ends", "axes", "steps")),
    "Split": (13, ("split",)),
    "Squeeze": (13, ("axes",)),
    "TopK": (10, ("k",)),
    "Unsqueeze": (13, ("axes",)),
}
_SCALARS = ("min", "max", "value", "k")
_TYPES = {
    **{name: f"tensor({name})" for name in ("bool", "float16")},
    **{
        f"{kind}{bits}": f"tensor({kind}{bits})" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
    },
    **{"float32": "tensor(float)", "float64": "tensor(double)", TEXT: "tensor(string)"},
}


@dataclass(frozen=True)
class Value:
    """What is known of a value."""

    name: str
    dtype: str
    shape: Shape
    exact: bool = False
    bound: float = 4.0
    distinct: bool = False  # no two elements are equal

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_known(self) -> bool:
        """True when every size is a number or `N`."""
        return None not in self.shape

    @property
    def is_fixed(self) -> bool:
        """True when every size is a number."""
        return all(isinstance(size, int) for size in self.shape)


class NoFitError(Exception):
    """No value fits what a recipe asks for; another recipe is tried."""


@dataclass
class Builder:
    """Collects a graph; recipes add nodes to it.

    Args:
        rng: decides everything.
        opset: of the model.
        prefix: of every name, so that bodies do not reuse names of the graph around them.
    """

    rng: random.Random
    opset: int
    prefix: str = ""
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    _count: int = 0

    def name(self, kind: str) -> str:
        """A name that is new."""
        self._count += 1
        return f"{self.prefix}{kind}{self._count}"

    def array(self, shape: Sequence[int], dtype: str = "float32", low: float = -1.0) -> np.ndarray:
        """Random numbers; integers are 0 to 7. Text is one of a few words."""
        draw = np.random.default_rng(self.rng.getrandbits(32))
        if dtype == TEXT:
            return np.asarray(draw.choice(WORDS, shape)).astype(object)
        if dtype == "bool":
            return np.asarray(draw.integers(0, 2, shape)).astype(bool)
        if np.dtype(dtype).kind in "iu":
            return np.asarray(draw.integers(0, 8, shape)).astype(dtype)
        return np.asarray(draw.uniform(low, 1.0, shape)).astype(dtype)

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        """A weight: an initializer, or now and then a node."""
        made = np.asarray(array, dtype=dtype)
        tensor = onnx.numpy_helper.from_array(made, self.name("w"))
        if self.rng.random() < 0.2:
            self.nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        else:
            self.weights.append(tensor)
        self.known[tensor.name] = made
        if made.dtype == object:
            return Value(tensor.name, TEXT, made.shape, True, 1)
        bound = float(np.abs(made.astype(np.float64)).max(initial=0.0))
        return Value(tensor.name, made.dtype.name, made.shape, True, bound)

    def add(
        self, op: str, inputs: Sequence[Value | None], *outputs: Value | None, **attributes: Any
    ) -> Value:
        """A node; each output is a value as it should be, whose name is made here. Returns the first.

        Args:
            op: of ONNX, or with its domain before `::`.

        Raises:
            NoFitError: the opset has no such operator, or not in this form.
        """
        domain, _, kind = op.rpartition("::")
        if not domain:
            inputs, attributes = self._as_opset_has_it(op, inputs, outputs, attributes)
        made = [None if o is None else _named(o, self.name("v")) for o in outputs]
        self.nodes.append(
            helper.make_node(
                kind,
                ["" if value is None else value.name for value in inputs],
                ["" if value is None else value.name for value in made],
                self.name(kind),
                domain=domain,
                **attributes,
            )
        )
        known = [value for value in made if value is not None]
        self.values.extend(known)
        return known[0]

    def _as_opset_has_it(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value | None],
        attributes: dict[str, Any],
    ) -> tuple[Sequence[Value | None], dict[str, Any]]:
        """Inputs and attributes as the opset of the model has them."""
        since, names = _WERE_ATTRIBUTES.get(op, (0, ()))
        if self.opset < since:
            inputs, attributes = self._written(inputs, attributes, names)
        try:
            schema = onnx.defs.get_schema(op, self.opset, "")
        except onnx.defs.SchemaError:
            raise NoFitError from None
        if schema.deprecated or not schema.min_input <= len(inputs) <= schema.max_input:
            raise NoFitError
        if not attributes.keys() <= schema.attributes.keys() or len(outputs) > schema.max_output:
            raise NoFitError
        if not _fit(inputs, schema.inputs) or not _fit(outputs, schema.outputs):
            raise NoFitError
        return inputs, attributes

    def _written(
        self, inputs: Sequence[Value | None], attributes: dict[str, Any], names: Sequence[str]
    ) -> tuple[Sequence[Value | None], dict[str, Any]]:
        """Inputs and attributes with constant inputs as the attributes that they once were."""
        written = dict(attributes)
        for name, value in zip(names, inputs[1:], strict=False):
            if value is None:
                continue
            if value.name not in self.known:
                raise NoFitError
            numbers = self.known[value.name].reshape(-1).tolist()
            written[name] = numbers[0] if name in _SCALARS else numbers
        if any(step != 1 for step in written.pop("steps", ())):
            raise NoFitError
        if min(written.get("axes", ()), default=0) < 0:  # not before opset 11
            raise NoFitError
        return inputs[:1], written

    def pick(
        self,
        *dtypes: str,
        rank: tuple[int, int] = (0, 5),
        exact: bool = False,
        fits: Callable[[Value], bool] = lambda value: value.is_known,
    ) -> Value:
        """A value of one of these types; later ones are likelier.

        Raises:
            NoFitError: there is none.
        """
        found = [
            value
            for value in self.values
            if value.dtype in (dtypes or _TYPES.keys() - {TEXT})
            and rank[0] <= value.rank <= rank[1]
            and (value.exact or not exact)
            and value.bound <= LARGEST
            and fits(value)
        ]
        if not found:
            raise NoFitError
        return found[min(self.rng.randrange(len(found) + 2), len(found) - 1)]

    def pick_or_make(
        self,
        shape: Shape,
        *dtypes: str,
        rank: tuple[int, int] = (0, 5),
        exact: bool = False,
        fits: Callable[[Value], bool] = lambda value: value.is_known,
    ) -> Value:
        """A value as `pick` gives it; where there is none, now and then an input of this shape.

        Raises:
            NoFitError: there is none.
        """
        try:
            return self.pick(*dtypes, rank=rank, exact=exact, fits=fits)
        except NoFitError:
            if self.prefix or self.rng.random() < 0.6:  # a body has no inputs of its own
                raise
        bound = 1 if dtypes[0] == TEXT else 4 if dtypes[0].startswith("float") else 7
        is_distinct = dtypes[0] == "float32"
        made = Value(self.name("x"), dtypes[0], shape, True, bound, is_distinct)
        self.inputs.append(made)
        self.values.append(made)
        return made

    def beside(self, value: Value) -> Value:
        """A value that can be broadcast with another one of its type: one that is there, or a weight."""
        found = [
            other
            for other in self.values
            if other.dtype == value.dtype
            and other.bound <= LARGEST
            and other.is_known
            and broadcast(value.shape, other.shape) is not None
        ]
        if found and self.rng.random() < 0.7:
            return self.rng.choice(found)
        kept = value.shape[self.rng.randint(0, value.rank) :]
        sizes = [size if isinstance(size, int) and self.rng.random() < 0.7 else 1 for size in kept]
        return self.constant(self.array(sizes, value.dtype))

    def axis(self, value: Value, fixed: bool = False) -> int:
        """An axis, counted from either end.

        Args:
            fixed: its size must be a number.
        """
        found = [a for a in range(value.rank) if not fixed or isinstance(value.shape[a], int)]
        if not found:
            raise NoFitError
        chosen = self.rng.choice(found)
        return chosen - value.rank if self.rng.random() < 0.3 else chosen


def _fit(values: Sequence[Value | None], formal: Sequence[Any]) -> bool:
    """Whether an operator has such inputs, or such outputs."""
    for position, value in enumerate(values):
        place = formal[min(position, len(formal) - 1)]
        if value is None and place.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            return False
        if value is not None and value.dtype in _TYPES and _TYPES[value.dtype] not in place.types:
            return False
    return True


def _named(value: Value, name: str) -> Value:
    return Value(name, value.dtype, value.shape, value.exact, value.bound, value.distinct)


def like(value: Value, **changes: Any) -> Value:
    """A value as another one, with what is different; its elements may be equal."""
    known = {
        "dtype": value.dtype,
        "shape": value.shape,
        "exact": value.exact,
        "bound": value.bound,
        **changes,
    }
    return Value("", **known)


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The shape of an operator on both, or None where they do not fit whatever `N` is."""
    length = max(len(a), len(b))
    if length > 5:
        return None
    sizes: list[Size] = []
    for x, y in zip((1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b, strict=True):
        if x != y and 1 not in (x, y):
            return None
        sizes.append(y if x == 1 else x)
    return tuple(sizes)


def replaced(shape: Shape, axis: int, size: Size) -> Shape:
    """The shape with another size at an axis."""
    axis %= len(shape)
    return (*shape[:axis], size, *shape[axis + 1 :])

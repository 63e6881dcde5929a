"""A random model from a number: the same number gives the same model."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tests.fuzzing import attributes, control, elementwise, layers, movement, rare
from tests.fuzzing.builder import TEXT, WORDS, Builder, N, NoFitError, Shape, Value
from tests.fuzzing.control import typed

_OPSETS = (8, 9, 10, 11, 12, 13, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24)
_GROUPS = (
    *(elementwise.RECIPES, movement.RECIPES, layers.RECIPES),
    *(attributes.RECIPES, rare.RECIPES),
)
_NUMBERS = (
    *["float32"] * 8,
    *("int64", "int64", "int32", "int32", "float64", "bool", "uint8", "float16"),
    *("int8", "int16", "uint16", "uint32", "uint64"),
)
_FIRST_WITHOUT_WEIGHTS_AS_INPUTS = 4  # the version of the file format
_MOST_NODES = 12


@dataclass(frozen=True)
class Case:
    """A model, and what to run it with.

    Args:
        sizes: of its free dimension, one after the other; a single 0 where it has none.
    """

    seed: int
    model: bytes
    sizes: tuple[int, ...]


def random_case(seed: int) -> Case:
    """A checked model of 1 to about 12 nodes."""
    rng = random.Random(seed)
    b = Builder(rng, rng.choice(_OPSETS))
    is_free = rng.random() < 0.45
    _give_inputs(b, is_free)
    # Few groups of operators in most models, so that they meet.
    groups = [g for g in _GROUPS if rng.random() < 0.6] or [rng.choice(_GROUPS)]
    if rng.random() < 0.15:
        groups.append(control.RECIPES)
    wanted, tries = rng.randint(1, _MOST_NODES), 0
    while sum(n.op_type != "Constant" for n in b.nodes) < wanted and tries < 60:
        tries += 1
        parts: list[list[object]] = [b.nodes, b.weights, b.values, b.inputs]
        before = [len(part) for part in parts]
        try:
            rng.choice(rng.choice(groups))(b)
        except NoFitError:
            for part, length in zip(parts, before, strict=True):
                del part[length:]
    if all(node.op_type == "Constant" for node in b.nodes):
        elementwise.smooth(b)
    sizes = tuple(rng.sample((1, 2, 3, 5), 2)) if is_free else (0,)
    return Case(seed, _model(b).SerializeToString(), sizes)


def _give_inputs(b: Builder, is_free: bool) -> None:
    """One to three inputs of numbers, and now and then a truth value or a count."""
    shape = _shape(b, is_free)
    for position in range(b.rng.randint(1, 3)):
        dtype = b.rng.choice(_NUMBERS)
        if position == 0:
            dtype = "float32"
        elif b.rng.random() < 0.6:
            shape = shape[b.rng.randint(0, len(shape)) :]
        else:
            shape = _shape(b, is_free)
        number = dtype.startswith("float")
        b.inputs.append(
            Value(b.name("x"), dtype, shape, True, 4 if number else 7, distinct=dtype == "float32")
        )
    for dtype in ("bool", "int64"):
        if b.rng.random() < 0.2:
            b.inputs.append(Value(b.name("x"), dtype, (), True, 7))
    if b.rng.random() < 0.06:
        b.inputs.append(Value(b.name("x"), TEXT, b.rng.choice([(), (2,), (1, 3)]), True, 1))
    b.values.extend(b.inputs)


def _shape(b: Builder, is_free: bool) -> Shape:
    rank = b.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5])
    sizes = [b.rng.choice([1, 2, 3, 4, 4, 6, 8]) for _ in range(rank)]
    if rank and b.rng.random() < 0.04:
        sizes[b.rng.randrange(rank)] = 0
    shape: Shape = tuple(sizes)
    if is_free and rank:
        axis = b.rng.choice([0, 0, b.rng.randrange(rank)])
        shape = (*shape[:axis], N, *shape[axis + 1 :])
    return shape


def _model(b: Builder) -> onnx.ModelProto:
    """Outputs are all values that nobody reads, and some that are read."""
    read = _read(b.nodes)
    made = [v for v in b.values if v not in b.inputs and v.dtype != "sequence"]
    outputs = [v for v in made if v.name not in read or b.rng.random() < 0.15]
    declared = list(b.inputs)
    has_bodies = any(a.type == onnx.AttributeProto.GRAPH for n in b.nodes for a in n.attribute)
    version = b.rng.choice([8 if has_bodies else 3, 8, 8, 8, 8, 8, 10])
    if version < _FIRST_WITHOUT_WEIGHTS_AS_INPUTS or b.rng.random() < 0.1:
        known = {t.name: t for t in b.weights}
        declared += [
            Value(name, onnx.helper.tensor_dtype_to_np_dtype(t.data_type).name, tuple(t.dims))
            for name, t in known.items()
            if version < _FIRST_WITHOUT_WEIGHTS_AS_INPUTS or b.rng.random() < 0.5
        ]
    graph = helper.make_graph(
        b.nodes, "g", [typed(v) for v in declared], [typed(v) for v in outputs], b.weights
    )
    used = [helper.make_opsetid("", b.opset)]
    used += [helper.make_opsetid(name, number) for name, number in rare.DOMAINS.items()]
    return helper.make_model(graph, opset_imports=used, ir_version=version)


def _read(nodes: list[onnx.NodeProto]) -> set[str]:
    """The names that nodes read, bodies included."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                names |= _read(list(attribute.g.node)) | {v.name for v in attribute.g.output}
    return names


def samples(inputs: Mapping[str, tuple[str, tuple[int, ...]]], seed: int) -> dict[str, np.ndarray]:
    """Inputs that no other seed gives: normal numbers, integers of 0 to 7, truth values, words.

    Args:
        inputs: type and shape by name.
    """
    draw = np.random.default_rng(seed)
    made = {}
    for name, (dtype, shape) in inputs.items():
        kind = np.dtype(dtype).kind
        if kind == "O":
            drawn = draw.choice(WORDS, shape)
        elif kind == "f":
            drawn = np.clip(draw.standard_normal(shape), -4, 4)
        else:
            drawn = draw.integers(0, 2 if kind == "b" else 8, shape)
        made[name] = np.asarray(drawn).astype(dtype)
    return made

"""Real models, changed where a stranger would change them: bytes, protobuf fields, paths, bodies, domains.

A mutation is a function of a parsed model, a `random.Random` and the path of a file that is none of its
business; it changes the model in place. A recipe
(hypothesis draws it) says which model, which mutations with which seeds, and how the bytes are damaged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests import models

MODELS = ("light_zfnet512", "light_squeezenet", "ppocr_cls", "silero_16k", "magika")

_ODD_NUMBERS = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 7, 1 << 16, 1 << 31, 1 << 40, (1 << 63) - 1)
_ODD_TEXTS = ("", "x", "a" * 5000, "../x", "/etc/passwd", "\x00", "ü\u202e", "%s%n", "-1", "{}")
_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "evil.ops",
    "com.microsoft.nchwc",
    "ai.onnx.training",
)
_OP_TYPES = (
    "EPContext",
    "If",
    "Loop",
    "Scan",
    "Constant",
    "Reshape",
    "QLinearConv",
    "Magic",
    "PyOp",
    "",
)

Mutation = Callable[[onnx.ModelProto, random.Random, str], None]


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return list(model.graph.node)


def data_type(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """Another element type for a weight, an input or an output."""
    kinds = list(range(-1, 28))
    if model.graph.initializer and rng.random() < 0.5:
        rng.choice(model.graph.initializer).data_type = rng.choice(kinds)
        return
    value = rng.choice([*model.graph.input, *model.graph.output])
    value.type.tensor_type.elem_type = rng.choice(kinds)


def dimensions(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """Other sizes, more of them, or fewer."""
    if model.graph.initializer and rng.random() < 0.5:
        dims = rng.choice(model.graph.initializer).dims
        if dims and rng.random() < 0.7:
            dims[rng.randrange(len(dims))] = rng.choice(_ODD_NUMBERS)
        else:
            dims.extend([rng.choice(_ODD_NUMBERS)])
        return
    shape = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type.shape
    size = rng.choice(shape.dim) if shape.dim and rng.random() < 0.7 else shape.dim.add()
    if rng.random() < 0.7:
        size.dim_value = rng.choice(_ODD_NUMBERS)
    else:
        size.dim_param = rng.choice(_ODD_TEXTS).replace("\x00", "")


def names(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """Names that are missing, the same twice, or look like paths."""
    things = [*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer]
    rng.choice(things).name = rng.choice([*_ODD_TEXTS, rng.choice(things).name])


def attributes(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """Another value, another kind, another name, one more, or none."""
    node = rng.choice(_nodes(model))
    if not node.attribute or rng.random() < 0.2:
        odd = rng.choice([1, -1.0, "text", [1 << 40], [0.5], b"\xff"])
        node.attribute.append(helper.make_attribute(rng.choice(["axis", "pads", "to", "x"]), odd))
        return
    attribute = rng.choice(node.attribute)
    change = rng.randrange(5)
    if change == 0:
        attribute.i = rng.choice(_ODD_NUMBERS)
        attribute.ints.append(rng.choice(_ODD_NUMBERS))
    elif change == 1:
        attribute.type = rng.randrange(15)  # type: ignore[assignment]
    elif change == 2:
        attribute.name = rng.choice([*_ODD_TEXTS, "axes"])
    elif change == 3:
        node.attribute.remove(attribute)
    elif attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_ODD_NUMBERS)
    else:
        attribute.f = rng.choice([float("nan"), float("inf"), -1e38, 0.0])


def wiring(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """Rings, values made twice or never, inputs too many or too few, nodes out of order."""
    nodes = _nodes(model)
    node, other = rng.choice(nodes), rng.choice(nodes)
    change = rng.randrange(6)
    if change == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*other.output, "nowhere", ""])
    elif change == 1 and node.output:
        node.output[0] = rng.choice([*other.output, *other.input, ""])
    elif change == 2:
        node.input.extend(list(other.output) * rng.choice([1, 3]))
    elif change == 3 and node.input:
        del node.input[-1]
    elif change == 4:
        model.graph.node.remove(node)
    else:
        shuffled = list(nodes)
        rng.shuffle(shuffled)
        copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in shuffled]
        del model.graph.node[:]
        model.graph.node.extend(copies)


def external_paths(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """A weight whose data is said to lie in some file; `secret` of the test has 64 KiB."""
    if not model.graph.initializer:
        model.graph.initializer.add(name="stray", data_type=TensorProto.FLOAT, dims=[4])
    tensor = rng.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    place = ["../outside/secret", "outside/../../outside/secret", secret, "/etc/passwd", "/dev/zero", "model",
             "..\\outside\\secret", "file://" + secret, "./../outside/secret", "", "work", "/proc/self/environ"]  # fmt: skip
    entries = {"location": rng.choice(place), "offset": rng.choice(["0", "-1", "4096", "x"])}
    if rng.random() < 0.5:
        entries["length"] = str(rng.choice([0, 16, 1 << 50]))
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def bodies(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """An operator with a body that captures, nests, or is the graph itself."""
    graph = model.graph
    name = graph.output[0].name
    inner = helper.make_node(
        rng.choice(["Identity", "EPContext", "Constant", "If"]), [name], ["inner_out"], "inner"
    )
    if rng.random() < 0.3:
        _point_outside(inner.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t, secret)
    body = helper.make_graph([inner], "body", [], [helper.make_tensor_value_info("inner_out", 1, None)])
    for _ in range(rng.choice([0, 1, 60])):
        nested = helper.make_node("If", ["c"], ["inner_out"], then_branch=body, else_branch=body)
        if nested.ByteSize() > 1 << 20:
            break
        body = helper.make_graph([nested], "body", [], list(body.output))
    graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    graph.node.append(helper.make_node("If", ["c"], ["more"], then_branch=body, else_branch=body))


def domains(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """Another domain, another operator, another version of either."""
    node = rng.choice(_nodes(model))
    change = rng.randrange(4)
    if change == 0:
        node.domain = rng.choice(_DOMAINS)
    elif change == 1:
        node.op_type = rng.choice(_OP_TYPES)
    elif change == 2:
        model.opset_import.add(domain=rng.choice(_DOMAINS), version=rng.choice([0, 1, 9, 27, 1 << 40]))
    else:
        model.opset_import[0].version = rng.choice([-1, 0, 1, 6, 13, 26, 28, 1 << 62])
        model.ir_version = rng.choice([0, 3, 10, 14, 1 << 40])


def compiled_blobs(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """An EPContext node that names a file, or a custom operator that names a library."""
    kind, domain = rng.choice(
        [("EPContext", "com.microsoft"), ("Custom", "evil.ops"), ("PyOp", "com.microsoft")]
    )
    node = helper.make_node(kind, [model.graph.input[0].name], ["blob_out"], "blob", domain=domain)
    node.attribute.append(helper.make_attribute("ep_cache_context", secret))
    node.attribute.append(helper.make_attribute("embed_mode", 0))
    node.attribute.append(helper.make_attribute("library", "/tmp/evil.so"))
    model.graph.node.append(node)
    model.opset_import.add(domain=domain, version=1)
    model.metadata_props.add(key="ep_context_file_path", value=secret)


def functions(model: onnx.ModelProto, rng: random.Random, secret: str) -> None:
    """A function that calls itself, or hides an operator of a stranger."""
    name = rng.choice(["F", rng.choice(_nodes(model)).op_type])
    domain = rng.choice(["", "own"])
    called = helper.make_node(rng.choice([name, "EPContext", "Relu"]), ["a"], ["b"], domain=domain)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function(domain, name, ["a"], ["b"], [called], opsets))
    model.opset_import.add(domain="own", version=1)
    call = helper.make_node(name, [model.graph.input[0].name], ["called"], domain=domain)
    model.graph.node.insert(0, call)


def _point_outside(tensor: onnx.TensorProto, secret: str) -> None:
    tensor.data_type, tensor.data_location = TensorProto.FLOAT, TensorProto.EXTERNAL
    tensor.dims.extend([16])
    tensor.external_data.add(key="location", value=secret)


MUTATIONS: tuple[Mutation, ...] = (
    *(data_type, dimensions, names, attributes, wiring, external_paths, bodies, domains),
    *(compiled_blobs, functions),
)


@dataclass(frozen=True)
class Recipe:
    """How one changed model is made."""

    model: str
    steps: tuple[tuple[int, int], ...]
    flips: tuple[tuple[float, int], ...]
    keep: float

    def file(self, secret: str) -> bytes:
        """The changed model's bytes; `secret` is a path that paths in it may point at."""
        proto = onnx.ModelProto.FromString(_source(self.model))
        for which, seed in self.steps:
            MUTATIONS[which](proto, random.Random(seed), secret)
        data = bytearray(proto.SerializeToString())
        for where, mask in self.flips:
            data[int(where * (len(data) - 1))] ^= mask
        return bytes(data[: int(len(data) * self.keep)])


@lru_cache(maxsize=len(MODELS))
def _source(name: str) -> bytes:
    return models.model_path(name).read_bytes()


def recipes(names: Sequence[str] = MODELS) -> st.SearchStrategy[Recipe]:
    """Recipes with at least one change."""
    steps = st.lists(
        st.tuples(st.integers(0, len(MUTATIONS) - 1), st.integers(0, 1 << 32)), min_size=0, max_size=3
    )
    # Mostly near the start and the end, where the structure is; weights fill the middle.
    where = st.one_of(st.floats(0, 0.01), st.floats(0.99, 1), st.floats(0, 1))
    flips = st.lists(st.tuples(where, st.integers(1, 255)), max_size=3)
    keep = st.one_of(st.just(1.0), st.just(1.0), st.just(1.0), st.floats(0, 1))
    made = st.builds(
        lambda model, steps, flips, keep: Recipe(model, tuple(steps), tuple(flips), keep),
        st.sampled_from(list(names)), steps, flips, keep,
    )  # fmt: skip
    return made.filter(lambda recipe: bool(recipe.steps or recipe.flips or recipe.keep < 1))

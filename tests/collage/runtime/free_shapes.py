"""Random graphs with free dimensions, cut into partitions on random targets, for tests of the executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage.backends.contract import SubModel
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.step import Step

TARGETS = ("onnxruntime", "openvino", "simulated -precision=f32", "onnxruntime -opt=none")
WIDTH = 3
_OPS = ("Relu", "Neg", "Add", "Concat", "ReduceSum", "MatMul", "Shape", "NonZero", "Fixed")


@dataclass(frozen=True)
class Recipe:
    """What a random plan is made of: operators, what each reads, the borders, the targets, the outputs.

    Args:
        kept: which values are outputs, beside those that nobody reads; taken modulo what there is.
    """

    ops: tuple[tuple[str, int, int], ...]
    borders: tuple[int, ...]
    targets: tuple[str, ...]
    kept: tuple[int, ...]


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Recipes of up to eight operators and three partitions."""
    number = st.integers(0, 20)
    ops = draw(st.lists(st.tuples(st.sampled_from(_OPS), number, number), min_size=1, max_size=8))
    return Recipe(
        tuple(ops),
        tuple(draw(st.lists(st.integers(1, max(1, len(ops) - 1)), max_size=2))),
        tuple(draw(st.lists(st.sampled_from(TARGETS), min_size=3, max_size=3))),
        tuple(draw(st.lists(number, max_size=3))),
    )


def write(recipe: Recipe, path: Path) -> Model:
    """The graph of a recipe: `x` is (n, 3), `y` (m, 3), `s` (1, 3); products of small integers are exact."""
    weight = np.array([[1, 0, 2], [0, -1, 0], [1, 1, 0]], np.float32)
    weights = [numpy_helper.from_array(weight, "w")] if "MatMul" in str(recipe.ops) else []
    nodes: list[onnx.NodeProto] = []
    # By rows, of which only equal ones can be added; one row can be added to all.
    rows: dict[str, list[str]] = {"n": ["x"], "m": ["y"], "1": ["s"]}
    others: dict[str, int] = {}  # values that no operator reads, with their types
    for i, (op, first, second) in enumerate(recipe.ops):
        made, name = f"v{i}", f"{op.lower()}{i}"
        places = [(row, value) for row, values in rows.items() for value in values]
        row, source = places[first % len(places)]
        if op in ("Relu", "Neg"):
            nodes.append(helper.make_node(op, [source], [made], name=name))
            rows[row].append(made)
        elif op == "Add":
            other = (rows[row] + rows["1"])[second % len(rows[row] + rows["1"])]
            nodes.append(helper.make_node("Add", [source, other], [made], name=name))
            rows[row].append(made)
        elif op == "Concat":
            other_row, other = places[second % len(places)]
            nodes.append(helper.make_node("Concat", [source, other], [made], name=name, axis=0))
            rows.setdefault(f"{row}+{other_row}", []).append(made)
        elif op == "ReduceSum":
            weights.append(numpy_helper.from_array(np.array([0], np.int64), f"axes{i}"))
            nodes.append(helper.make_node("ReduceSum", [source, f"axes{i}"], [made], name=name))
            rows["1"].append(made)
        elif op == "MatMul":
            nodes.append(helper.make_node("MatMul", [source, "w"], [made], name=name))
            rows[row].append(made)
        elif op == "Shape":
            nodes.append(helper.make_node("Shape", [source], [made], name=name))
            others[made] = TensorProto.INT64
        elif op == "NonZero":  # its shape depends on the numbers
            nodes.append(helper.make_node("NonZero", [source], [made], name=name))
            others[made] = TensorProto.INT64
        else:  # a step of fixed shape among the others
            nodes.append(helper.make_node("Abs", ["s"], [made], name=name))
            rows["1"].append(made)
    names = [node.output[0] for node in nodes]
    read = {value for node in nodes for value in node.input}
    kept = {names[k % len(names)] for k in recipe.kept}
    outputs = [value for value in names if value not in read or value in kept]
    inputs = [_info("x", ("n", WIDTH)), _info("y", ("m", WIDTH)), _info("s", (1, WIDTH))]
    graph = helper.make_graph(
        nodes,
        "free",
        inputs,
        [helper.make_tensor_value_info(o, others.get(o, TensorProto.FLOAT), None) for o in outputs],
        weights,
    )
    made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(made_model), path)
    return Model.open(path)


def steps_of(
    recipe: Recipe, model: Model, compiled: CompiledRegions, folder: Path
) -> tuple[list[Step], list[TensorSpec]]:
    """The partitions of a recipe, compiled, and the graph's inputs."""
    count = len(model.index.nodes)
    ends = sorted({min(border, count) for border in recipe.borders} | {count})
    steps, start = [], 0
    for i, end in enumerate(ends):
        nodes = sum(1 << node for node in range(start, end))
        part = extract(model, nodes, folder / str(i))
        region = SubModel(part.path, part.inputs, part.outputs)
        executable = compiled.get(str(i), region, Target.parse(recipe.targets[i]))
        steps.append(Step(executable, region.inputs, region.outputs))
        start = end
    return steps, [model.index.values[name] for name in model.index.inputs]


def feed_of(sizes: Sequence[int], seed: int) -> dict[str, np.ndarray]:
    """Small integers, some of them zero."""
    random = np.random.default_rng(seed)
    shapes = {"x": (sizes[0], WIDTH), "y": (sizes[1], WIDTH), "s": (1, WIDTH)}
    return {n: random.integers(-2, 3, shape).astype(np.float32) for n, shape in shapes.items()}


def _info(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

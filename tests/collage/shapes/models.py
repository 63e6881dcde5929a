"""Small models with free dimensions, of the kinds that exporters write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Axes = list[int | str]
Dims = Sequence[int | str | None]
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def chain() -> onnx.ModelProto:
    """Reshape, Slice and Expand by what Shape says, between two products; two inputs share `length`."""
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"], name="shape"),
        helper.make_node("Gather", ["dims", "zero"], ["batch"], name="batch_of"),
        helper.make_node("Gather", ["dims", "one"], ["length"], name="length_of"),
        helper.make_node("Mul", ["batch", "length"], ["rows"], name="rows_of"),
        helper.make_node("Concat", ["rows", "eight"], ["flat_shape"], name="flat_shape_of", axis=0),
        helper.make_node("Reshape", ["x", "flat_shape"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "w"], ["product"], name="product"),
        helper.make_node("Relu", ["product"], ["active"], name="active"),
        helper.make_node("Reshape", ["active", "dims"], ["back"], name="back"),
        helper.make_node("Div", ["length", "two"], ["half"], name="half_of"),
        helper.make_node("Slice", ["back", "zero", "half", "one"], ["front"], name="front"),
        helper.make_node("Unsqueeze", ["bias", "last"], ["column"], name="column"),
        helper.make_node("Expand", ["column", "dims"], ["wide"], name="wide"),
        helper.make_node("Add", ["back", "wide"], ["y"], name="sum"),
        helper.make_node("ReduceMean", ["front"], ["z"], name="mean", axes=[2], keepdims=0),
    ]
    weights = {
        "w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32),
        **{
            name: np.array([value], np.int64)
            for name, value in [("zero", 0), ("one", 1), ("eight", 8), ("two", 2), ("last", 1)]
        },
    }
    inputs = [_float("x", ["batch", "length", 8]), _float("bias", ["length"])]
    return _model(
        nodes, inputs, [_float("y", ["batch", "length", 8]), _float("z", ["batch", "half"])], weights
    )


def data_dependent() -> onnx.ModelProto:
    """The positive elements of a product: how many there are depends on values."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Greater", ["product", "none"], ["is_positive"], name="is_positive"),
        helper.make_node("Compress", ["product", "first"], ["rows"], name="rows", axis=0),
        helper.make_node("NonZero", ["is_positive"], ["places"], name="places"),
        helper.make_node("Cast", ["places"], ["y"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Relu", ["rows"], ["z"], name="active"),
    ]
    weights = {
        "w": np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32),
        "none": np.zeros(1, np.float32),
    }
    inputs = [
        _float("x", ["rows", 4]),
        helper.make_tensor_value_info("first", TensorProto.BOOL, ["rows"]),
    ]
    return _model(nodes, inputs, [_float("y", [2, "found"]), _float("z", ["kept", 4])], weights)


def image() -> onnx.ModelProto:
    """Two convolutions over an image of any size."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="active"),
        helper.make_node("Conv", ["b", "l"], ["c"], name="second", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"], name="mean"),
    ]
    rng = np.random.default_rng(2)
    weights = {
        "k": rng.standard_normal((6, 3, 3, 3)).astype(np.float32),
        "l": rng.standard_normal((5, 6, 3, 3)).astype(np.float32),
    }
    inputs = [_float("x", ["batch", 3, "height", "width"])]
    return _model(nodes, inputs, [_float("y", ["batch", 5, 1, 1])], weights)


def feed_forward(hidden: int = 64, layers: int = 2) -> onnx.ModelProto:
    """Pairs of products with residual sums over rows of any number and length, and the mean over the length."""
    rng = np.random.default_rng(3)
    nodes, weights, value = [], {}, "x"
    for i in range(layers):
        up = rng.standard_normal((hidden, 4 * hidden)) / hidden**0.5
        down = rng.standard_normal((4 * hidden, hidden)) / hidden**0.5
        weights |= {f"up{i}": up.astype(np.float32), f"down{i}": down.astype(np.float32)}
        nodes += [
            helper.make_node("MatMul", [value, f"up{i}"], [f"wide{i}"], name=f"up_{i}"),
            helper.make_node("Relu", [f"wide{i}"], [f"active{i}"], name=f"active_{i}"),
            helper.make_node("MatMul", [f"active{i}", f"down{i}"], [f"narrow{i}"], name=f"down_{i}"),
            helper.make_node("Add", [value, f"narrow{i}"], [f"sum{i}"], name=f"sum_{i}"),
        ]
        value = f"sum{i}"
    nodes.append(helper.make_node("ReduceMean", [value], ["y"], name="mean", axes=[1], keepdims=0))
    inputs = [_float("x", ["batch", "length", hidden])]
    return _model(nodes, inputs, [_float("y", ["batch", hidden])], weights)


def _float(name: str, axes: Axes) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Dims]],
    outputs: Mapping[str, tuple[int, Dims]],
    **weights: np.ndarray,
) -> Path:
    """A model of some nodes, written to a folder."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, dims) for n, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, dims) for n, (kind, dims) in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def text_model(folder: Path, positions: int = 300) -> Path:
    """Embeddings of tokens and of their positions, of which there are so many."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["tokens"], "tokens"),
        helper.make_node("Shape", ["ids"], ["length"], "length", start=1, end=2),
        helper.make_node("Slice", ["positions", "zero", "length"], ["here"], "here"),
        helper.make_node("Add", ["tokens", "here"], ["y"], "add_positions"),
    ]
    return save(
        folder,
        nodes,
        {"ids": (INT, ["batch", "length"])},
        {"y": (FLOAT, ["batch", "length", 4])},
        table=np.ones((10, 4), np.float32),
        positions=np.ones((positions, 4), np.float32),
        zero=np.zeros(1, np.int64),
    )

"""The model on which runtimes are timed in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.backends.contract import SubModel
from collage.partitioner.tensor import TensorSpec

CHANNELS = 64


def kernel(side: int, path: Path) -> SubModel:
    """Write a model of two convolutions on `side` × `side` × 64 values."""
    shape = (1, CHANNELS, side, side)
    generator = np.random.default_rng(0)
    scale = float(np.sqrt(2 / (9 * CHANNELS)))
    weights = [
        numpy_helper.from_array(
            generator.normal(0, scale, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32), f"w{i}"
        )
        for i in range(2)
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "kernel", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), path)
    x, y = (TensorSpec(name, "float32", shape) for name in "xy")
    return SubModel(path, (x,), (y,))

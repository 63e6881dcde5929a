"""A model of 500 nodes, and the backend with planted faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.backends import planted

NODES = 500
WIDTH = 32


def long_model(nodes: int = NODES, width: int = WIDTH) -> onnx.ModelProto:
    """Blocks of Gemm, Tanh, Mul, Add and Relu with a skip connection; nodes are called n0, n1 …"""
    generator = np.random.default_rng(0)
    made, weights = [], []
    value = last = "x"
    for i in range(nodes):
        out = "y" if i == nodes - 1 else f"v{i}"
        kind = i % 5
        if kind == 0:
            # The sum of branches grows, and Tanh must not hide an error.
            weight = generator.standard_normal((width, width)) / np.sqrt(width * (1 + i / 5))
            weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
            made.append(helper.make_node("MatMul", [value, f"w{i}"], [out], name=f"n{i}"))
        elif kind == 2:
            scale = numpy_helper.from_array(
                generator.uniform(0.8, 1.2, width).astype(np.float32), f"w{i}"
            )
            weights.append(scale)
            made.append(helper.make_node("Mul", [value, f"w{i}"], [out], name=f"n{i}"))
        elif kind == 4:
            made.append(helper.make_node("Add", [value, last], [out], name=f"n{i}"))
            last = out
        else:
            op = "Tanh" if kind == 1 else "Neg"
            made.append(helper.make_node(op, [value], [out], name=f"n{i}"))
        value = out
    shape = [1, width]
    graph = helper.make_graph(
        made,
        "long",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """The model of 500 nodes."""
    path = tmp_path / "long.onnx"
    onnx.save(long_model(), path)
    return path


@pytest.fixture
def planted_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend with planted faults, installed as a plugin for this process and its children."""
    monkeypatch.syspath_prepend(str(planted.install(tmp_path / "site")))

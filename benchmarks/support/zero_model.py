"""A model that computes zeros from any input, and targets whose costs on it are stated.

Backend `null` writes zeros and states its latency, so its outputs are right for this model. The best
plan is known beforehand, a measurement takes as long as starting a child, and no clock matters. For
tests and benchmarks of the server and the database.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

FAST_CONV = "null -latency_us=200 -ops=Conv,Relu"
FAST_POOL = "null -latency_us=300 -ops=MaxPool,Tanh"
SLOW = "null -latency_us=9000 -ops=Relu,MaxPool,Tanh"
TARGETS = (FAST_CONV, FAST_POOL, SLOW)


def zero_model(blocks: int = 2, seed: int = 0) -> bytes:
    """Conv → Relu → MaxPool so many times, then Tanh, with weights that are zero.

    Args:
        blocks: how many times, 1 to 4.
        seed: models of different seeds share no costs.
    """
    nodes, weights, before = [], [], "x"
    width = 3
    for n in range(blocks):
        # Another width each time, so that no two parts are alike and share a cost.
        following = 4 + n + 7 * seed
        weights.append(numpy_helper.from_array(np.zeros((following, width, 3, 3), np.float32), f"w{n}"))
        nodes += [
            helper.make_node("Conv", [before, f"w{n}"], [f"c{n}"], name=f"conv{n}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{n}"], [f"r{n}"], name=f"relu{n}"),
            helper.make_node(
                "MaxPool", [f"r{n}"], [f"p{n}"], name=f"pool{n}", kernel_shape=[2, 2], strides=[2, 2]
            ),
        ]
        before, width = f"p{n}", following
    nodes.append(helper.make_node("Tanh", [before], ["y"], name="tanh"))
    side = 32 >> blocks
    graph = helper.make_graph(
        nodes,
        "zero",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, width, side, side])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def best_plan(blocks: int = 2) -> list[tuple[tuple[str, ...], str]]:
    """Nodes and target of each partition of the best plan: each run of operators where it is fast."""
    plan: list[tuple[tuple[str, ...], str]] = []
    for n in range(blocks):
        last = ("tanh",) if n == blocks - 1 else ()
        plan += [((f"conv{n}", f"relu{n}"), FAST_CONV), ((f"pool{n}", *last), FAST_POOL)]
    return plan

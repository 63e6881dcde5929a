"""x * HardSigmoid(x) becomes HardSwish.

PyTorch's exporter writes the product before opset 14, and ONNX Runtime's basic level does too. OpenVINO
fuses HardSwish, and its form with Clip, with the convolution before it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from collage.backends.rewriting.graph import RewriteGraph, attributes, reads

_HAS_HARD_SWISH, _CLIP_TAKES_INPUTS = 14, 11
# A hard swish is x * max(0, min(1, x / 6 + 1 / 2)).
_ALPHA, _BETA, _CLOSE = 1 / 6, 0.5, 1e-5
_NUMBERS = {"collage.three": 3.0, "collage.zero": 0.0, "collage.six": 6.0, "collage.sixth": _ALPHA}


def fuse_hard_swish(graph: RewriteGraph) -> int:
    """Apply the pass; below opset 14 the result has Clip. Returns how many there were."""
    halves = any(t.data_type == onnx.TensorProto.FLOAT16 for t in graph.constants.values())
    if graph.opset < _CLIP_TAKES_INPUTS or (graph.opset < _HAS_HARD_SWISH and halves):
        return 0  # the constants of the form with Clip are float32
    gates = {node.output[0]: node for node in graph.nodes if _is_gate(graph, node)}
    kept: list[onnx.NodeProto] = []
    found = 0
    for node in graph.nodes:
        value = _swished(graph, node, gates)
        if value is None:
            kept.append(node)
            continue
        found += 1
        kept.extend(_hard_swish(graph, node, value))
    if found:
        read = {name for node in kept for name in reads(node)}
        read |= {value.name for value in graph.proto.graph.output}
        graph.replace([n for n in kept if n.output[0] in read or n.output[0] not in gates])
    return found


def _is_gate(graph: RewriteGraph, node: onnx.NodeProto) -> bool:
    if not graph.is_ours(node, "HardSigmoid"):
        return False
    given = attributes(node)
    alpha, beta = given.get("alpha", 0.2), given.get("beta", 0.5)
    return bool(abs(alpha - _ALPHA) < _CLOSE and abs(beta - _BETA) < _CLOSE)


def _swished(graph: RewriteGraph, node: onnx.NodeProto, gates: dict[str, onnx.NodeProto]) -> str | None:
    """The value that a node multiplies with its own gate."""
    if not graph.is_ours(node, "Mul"):
        return None
    for value, gate in (tuple(node.input), tuple(reversed(node.input))):
        if gate in gates and gates[gate].input[0] == value:
            return str(value)
    return None


def _hard_swish(graph: RewriteGraph, node: onnx.NodeProto, value: str) -> list[onnx.NodeProto]:
    made = node.output[0]
    if graph.opset >= _HAS_HARD_SWISH:
        return [helper.make_node("HardSwish", [value], [made], name=node.name)]
    three, zero, six, sixth = (graph.constant(n, np.array(x, np.float32)) for n, x in _NUMBERS.items())
    shifted, clipped, wide = (f"{made}.{step}" for step in ("shifted", "clipped", "wide"))
    return [
        helper.make_node("Add", [value, three], [shifted], name=shifted),
        helper.make_node("Clip", [shifted, zero, six], [clipped], name=clipped),
        helper.make_node("Mul", [value, clipped], [wide], name=wide),
        helper.make_node("Mul", [wide, sixth], [made], name=node.name),
    ]

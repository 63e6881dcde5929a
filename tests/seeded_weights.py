"""Seeded weights that make an untrained network behave like a trained one, as far as numbers go.

Constant or carelessly drawn weights hide errors: activations explode or die, batch norms do nothing,
a saturated softmax swallows every difference. So: He-normal matrices, batch norms that divide by the
root mean square of what they really see, and a last layer whose outputs have a standard deviation of 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray
_LOGIT_STD = 2.0
_LEAST_VARIANCE = 0.01
_MATRICES = {"Conv": 1, "Gemm": 1, "MatMul": 1, "ConvTranspose": 1}


def reseed(model: onnx.ModelProto, seed: int) -> None:
    """Replace every floating-point weight by seeded numbers that suit the node that uses it, in place.

    Args:
        model: normalized, so that weights are initializers.
        seed: equal seeds give equal weights.
    """
    random = np.random.default_rng(seed)
    uses = {name: (node, i) for node in model.graph.node for i, name in enumerate(node.input)}
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor.name not in uses:
            continue
        node, position = uses[tensor.name]
        array = _drawn(random, node, position, tuple(tensor.dims))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _drawn(
    random: np.random.Generator, node: onnx.NodeProto, position: int, shape: tuple[int, ...]
) -> Array:
    if node.op_type in _MATRICES and position == _MATRICES[node.op_type]:
        fan_in = math.prod(shape[1:])
        return random.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / fan_in))
    scales = node.op_type == "Mul" or (node.op_type == "BatchNormalization" and position in (1, 4))
    if scales:
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return random.standard_normal(shape, np.float32) * np.float32(0.1)


def calibrate(model: onnx.ModelProto, feed: Mapping[str, Array]) -> None:
    """Set batch-norm statistics and the last layer's scale by what this input causes, in place."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}

    def replace(name: str, array: Array) -> None:
        weights[name].CopyFrom(numpy_helper.from_array(np.asarray(array, np.float32), name))

    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    if norms:
        found = _run(_training_copy(model), feed, [f"{n.name}.{i}" for n in norms for i in (0, 1)])
        for node, mean, variance in zip(norms, found[::2], found[1::2], strict=True):
            replace(node.input[3], mean)
            # Among the pixels of one input a channel may hardly vary. Divided by that spread, rounding would grow
            # into errors that statistics over many inputs, as in training, never cause.
            replace(node.input[4], np.maximum(variance + mean**2, _LEAST_VARIANCE))
    last = _last_matrix(model, weights)
    if last is not None:
        factor = np.float32(_LOGIT_STD / _run(model, feed, [last.output[0]])[0].std())
        for name in last.input[1:]:
            replace(name, numpy_helper.to_array(weights[name]) * factor)


def _training_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with batch norms that normalize by the statistics of their inputs, and return these."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.extend([helper.make_attribute("training_mode", 1)])
            node.attribute.extend([helper.make_attribute("momentum", 0.0)])
            node.output.extend([f"{node.name}.0", f"{node.name}.1"])
        elif node.op_type == "Dropout":
            node.op_type = "Identity"
            del node.attribute[:]
    # The operators of the models at hand mean the same in 15, where batch norm has this mode.
    (opset,) = [entry for entry in copy.opset_import if not entry.domain]
    opset.version = max(opset.version, 15)
    return copy


def _last_matrix(model: onnx.ModelProto, weights: Mapping[str, object]) -> onnx.NodeProto | None:
    """The matrix product with weights that makes the only output, but for layers without weights."""
    producers = {name: node for node in model.graph.node for name in node.output}
    node = producers.get(model.graph.output[0].name) if len(model.graph.output) == 1 else None
    while node is not None and not any(name in weights for name in node.input[1:2]):
        node = producers.get(node.input[0])
    matrix = node is not None and node.op_type in ("Gemm", "Conv")
    return node if matrix else None


def _run(model: onnx.ModelProto, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    for name in names:
        probe.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(
        probe.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(value) for value in session.run(list(names), dict(feed))]

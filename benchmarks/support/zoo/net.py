"""Building ONNX models node by node, with seeded weights that keep activations in a sane range.

Published architectures are rebuilt here operator for operator, as their PyTorch exports have them, so
that benchmarks need neither PyTorch nor downloads. Weights are He-normal, batch-norm scale and variance
positive and varied: default initialization would leave fused forms degenerate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


@dataclass(frozen=True)
class Feature:
    """A feature map: an ONNX value and its number of channels."""

    name: str
    channels: int


class Net:
    """A graph under construction."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self._name = name
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(self, op_type: str, outputs: int, *inputs: str, **attributes: object) -> list[str]:
        """Add a node with several outputs."""
        number = len(self._nodes)
        made = [
            f"{op_type.lower()}_{number}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)
        ]
        self._nodes.append(helper.make_node(op_type, inputs, made, f"{op_type}_{number}", **attributes))
        return made

    def constant(self, array: object, dtype: type = np.float32) -> str:
        """A weight with these values."""
        name = f"weight_{len(self._weights)}"
        self._weights[name] = np.asarray(array, dtype)
        return name

    def normal(self, *shape: int, std: float = 1.0) -> str:
        """A weight of seeded normal numbers."""
        return self.constant(self._random.standard_normal(shape, np.float32) * np.float32(std))

    def uniform(self, *shape: int, low: float, high: float) -> str:
        """A weight of seeded numbers between two bounds."""
        return self.constant(self._random.uniform(low, high, shape))

    def conv(
        self,
        x: Feature,
        channels: int,
        kernel: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        *,
        pad: tuple[int, ...] | None = None,
        groups: int = 1,
    ) -> Feature:
        """A convolution without bias, padded to keep the size unless `pad` is given."""
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        strides = (stride,) * len(size) if isinstance(stride, int) else stride
        pads = tuple(k // 2 for k in size) if pad is None else pad
        fan_in = x.channels // groups * math.prod(size)
        weight = self.normal(channels, x.channels // groups, *size, std=math.sqrt(2 / fan_in))
        name = self.op(
            "Conv",
            x.name,
            weight,
            kernel_shape=size,
            strides=strides,
            pads=(*pads, *pads),
            group=groups,
        )
        return Feature(name, channels)

    def batch_norm(self, x: Feature) -> Feature:
        c = x.channels
        scale, bias = self.uniform(c, low=0.5, high=1.5), self.normal(c, std=0.1)
        mean, variance = self.normal(c, std=0.1), self.uniform(c, low=0.5, high=1.5)
        return Feature(self.op("BatchNormalization", x.name, scale, bias, mean, variance), c)

    def relu(self, x: Feature) -> Feature:
        return Feature(self.op("Relu", x.name), x.channels)

    def add(self, a: Feature, b: Feature) -> Feature:
        return Feature(self.op("Add", a.name, b.name), a.channels)

    def concat(self, parts: Sequence[Feature]) -> Feature:
        name = self.op("Concat", *(part.name for part in parts), axis=1)
        return Feature(name, sum(part.channels for part in parts))

    def classify(self, x: Feature, classes: int) -> str:
        """Global average pooling and a fully connected layer, scaled so that logits stay moderate."""
        flat = self.op("Flatten", self.op("GlobalAveragePool", x.name), axis=1)
        weight = self.normal(classes, x.channels, std=1 / math.sqrt(x.channels))
        return self.op("Gemm", flat, weight, self.normal(classes, std=0.1), transB=1)

    def linear(self, x: str, fan_in: int, fan_out: int) -> str:
        """A matrix product with bias on the last axis."""
        weight = self.normal(fan_in, fan_out, std=1 / math.sqrt(fan_in))
        return self.op("Add", self.op("MatMul", x, weight), self.normal(fan_out, std=0.1))

    def layer_norm(self, x: str, size: int, epsilon: float) -> str:
        scale, bias = self.uniform(size, low=0.5, high=1.5), self.normal(size, std=0.1)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.constant(shape, np.int64))

    def model(self, outputs: dict[str, str]) -> onnx.ModelProto:
        """The finished model.

        Args:
            outputs: name of a graph output to the value it is.
        """
        renamed = {value: name for name, value in outputs.items()}
        for node in self._nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        graph = helper.make_graph(
            self._nodes,
            self._name,
            self._inputs,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self._weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

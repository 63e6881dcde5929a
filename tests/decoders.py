"""Decoders with a key-value cache, written node by node: the architecture of Llama and SmolLM2.

Inputs are `input_ids` (batch, length) and for each layer `past.N.key` and `past.N.value` (batch, key
heads, past, head size). Outputs are `logits` (batch, words) of the last position, and `present.N.key`
and `present.N.value`, which are `past + length` long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
# From a name and a shape to the weight; a product's weight is (inputs, outputs).
Weights = Callable[[str, tuple[int, ...]], Array]


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder.

    Args:
        kept: of how many positions the rotations are in the file; no more can be computed.
    """

    layers: int = 2
    width: int = 32
    heads: int = 4
    key_heads: int = 2
    inner: int = 64
    words: int = 50
    theta: float = 10000.0
    epsilon: float = 1e-5
    kept: int = 256

    @property
    def head_size(self) -> int:
        return self.width // self.heads


def seeded(seed: int = 0) -> Weights:
    """Normal weights that keep the size of values."""

    def weight(name: str, shape: tuple[int, ...]) -> Array:
        random = np.random.default_rng([seed, *name.encode()])
        if len(shape) == 1:
            return 1 + random.standard_normal(shape).astype(np.float32) / 10
        scale = 1.0 if name == "embed" else shape[0] ** -0.5
        return (random.standard_normal(shape) * scale).astype(np.float32)

    return weight


def write_decoder(path: Path, decoder: Decoder, weights: Weights) -> Path:
    """Write a decoder as an ONNX file with free batch, length and past."""
    _Writer(decoder, weights).write(path)
    return path


class _Writer:
    def __init__(self, decoder: Decoder, weights: Weights) -> None:
        self._decoder, self._weights = decoder, weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def write(self, path: Path) -> None:
        d = self._decoder
        inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", d.words])]
        for layer in range(d.layers):
            for kind in ("key", "value"):
                shapes = (("past", "past"), ("present", "past + length"))
                for (prefix, size), where in zip(shapes, (inputs, outputs), strict=True):
                    shape = ["batch", d.key_heads, size, d.head_size]
                    name = f"{prefix}.{layer}.{kind}"
                    where.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        embed = self._weight("embed", (d.words, d.width))
        self._rotations()
        x = self._add("Gather", [embed, "input_ids"], "embedded")
        for layer in range(d.layers):
            x = self._layer(x, layer)
        x = self._norm(x, "last_norm")
        x = self._add("Gather", [x, self._int("last", -1)], "last_row", axis=1)
        self._add("Gemm", [x, embed], "logits", transB=1)
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, self._initializers)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)

    def _add(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name: str, value: Array) -> str:
        if all(tensor.name != name for tensor in self._initializers):
            self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        value = self._weights(name, shape)
        assert value.shape == shape, (name, value.shape, shape)
        return self._constant(name, np.ascontiguousarray(value, np.float32))

    def _int(self, name: str, *values: int) -> str:
        value = np.array(values if name.endswith("s") else values[0], np.int64)
        return self._constant(f"int_{name}", value)

    def _rotations(self) -> None:
        """Rotations of the new positions, and what each position may look at."""
        d = self._decoder
        half = d.head_size // 2
        angles = np.outer(np.arange(d.kept), d.theta ** (-np.arange(half) / half))
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            table = np.concatenate([function(angles)] * 2, axis=1).astype(np.float32)
            self._constant(f"{name}_table", table)
        sizes = {"length": ("input_ids", 1), "past_length": ("past.0.key", 2)}
        for name, (value, axis) in sizes.items():
            shape = self._add("Shape", [value], f"{name}_shape")
            self._add("Gather", [shape, self._int(f"axis{axis}", axis)], name)
        self._add("Add", ["past_length", "length"], "total")
        zero, one = self._int("zero", 0), self._int("one", 1)
        self._add("Range", ["past_length", "total", one], "positions")
        self._add("Range", [zero, "total", one], "all_positions")
        for name in ("cos", "sin"):
            self._add("Gather", [f"{name}_table", "positions"], name)
        self._add("Unsqueeze", ["positions", self._int("one_axis_s", 1)], "rows")
        self._add("LessOrEqual", ["all_positions", "rows"], "seen")
        none = self._constant("unseen", np.array(-1e9, np.float32))
        self._add("Where", ["seen", self._constant("seen_0", np.array(0, np.float32)), none], "mask")

    def _layer(self, x: str, layer: int) -> str:
        d, p = self._decoder, f"layer{layer}"
        groups = d.heads // d.key_heads
        normed = self._norm(x, f"{p}.attention_norm")
        # (batch, length, key heads, groups, size) to (batch, key heads, groups, length, size)
        q = self._product(normed, f"{p}.q", d.width, d.heads * d.head_size)
        q = self._split(q, f"{p}.q", (0, 0, d.key_heads, groups, d.head_size), [0, 2, 3, 1, 4])
        q = self._rotated(q, f"{p}.q")
        present = []
        for kind in ("key", "value"):
            v = self._product(normed, f"{p}.{kind}", d.width, d.key_heads * d.head_size)
            v = self._split(v, f"{p}.{kind}", (0, 0, d.key_heads, d.head_size), [0, 2, 1, 3])
            if kind == "key":
                v = self._rotated(v, f"{p}.{kind}")
            whole = self._add("Concat", [f"past.{layer}.{kind}", v], f"present.{layer}.{kind}", axis=2)
            present.append(
                self._add("Unsqueeze", [whole, self._int("group_axis_s", 2)], f"{p}.{kind}.all")
            )
        keys = self._add("Transpose", [present[0]], f"{p}.keys", perm=[0, 1, 2, 4, 3])
        scores = self._add("MatMul", [q, keys], f"{p}.raw_scores")
        scale = self._constant("scale", np.array(d.head_size**-0.5, np.float32))
        scores = self._add("Mul", [scores, scale], f"{p}.scores")
        scores = self._add("Add", [scores, "mask"], f"{p}.masked")
        scores = self._add("Softmax", [scores], f"{p}.weights", axis=-1)
        mixed = self._add("MatMul", [scores, present[1]], f"{p}.mixed")
        mixed = self._split(mixed, f"{p}.mixed", None, [0, 3, 1, 2, 4])
        whole = self._int(f"{p}.joined_s", 0, 0, d.width)
        mixed = self._add("Reshape", [mixed, whole], f"{p}.joined")
        mixed = self._product(mixed, f"{p}.output", d.width, d.width)
        x = self._add("Add", [x, mixed], f"{p}.attended")
        normed = self._norm(x, f"{p}.inner_norm")
        gate = self._product(normed, f"{p}.gate", d.width, d.inner)
        sigmoid = self._add("Sigmoid", [gate], f"{p}.sigmoid")
        gate = self._add("Mul", [gate, sigmoid], f"{p}.swish")
        up = self._product(normed, f"{p}.up", d.width, d.inner)
        gate = self._add("Mul", [gate, up], f"{p}.gated")
        down = self._product(gate, f"{p}.down", d.inner, d.width)
        return self._add("Add", [x, down], f"{p}.result")

    def _product(self, x: str, name: str, inputs: int, outputs: int) -> str:
        return self._add("MatMul", [x, self._weight(name, (inputs, outputs))], f"{name}.product")

    def _split(self, x: str, name: str, shape: tuple[int, ...] | None, perm: list[int]) -> str:
        if shape is not None:
            x = self._add("Reshape", [x, self._int(f"{name}.split_s", *shape)], f"{name}.split")
        return self._add("Transpose", [x], f"{name}.turned", perm=perm)

    def _norm(self, x: str, name: str) -> str:
        square = self._add("Mul", [x, x], f"{name}.square")
        mean = self._add("ReduceMean", [square], f"{name}.mean", axes=[-1])
        epsilon = self._constant("epsilon", np.array(self._decoder.epsilon, np.float32))
        mean = self._add("Add", [mean, epsilon], f"{name}.safe")
        root = self._add("Sqrt", [mean], f"{name}.root")
        x = self._add("Div", [x, root], f"{name}.scaled")
        return self._add("Mul", [x, self._weight(name, (self._decoder.width,))], f"{name}.normed")

    def _rotated(self, x: str, name: str) -> str:
        """Both halves of a head turned by the angle of its position."""
        half = self._decoder.head_size // 2
        parts = []
        for i, part in enumerate(("low", "high")):
            start = self._int(f"{part}_starts", i * half)
            end = self._int(f"{part}_ends", (i + 1) * half)
            axes = self._int("last_axes", -1)
            parts.append(self._add("Slice", [x, start, end, axes], f"{name}.{part}"))
        minus = self._add("Neg", [parts[1]], f"{name}.minus")
        turned = self._add("Concat", [minus, parts[0]], f"{name}.half", axis=-1)
        x = self._add("Mul", [x, "cos"], f"{name}.by_cos")
        turned = self._add("Mul", [turned, "sin"], f"{name}.by_sin")
        return self._add("Add", [x, turned], f"{name}.rotated")

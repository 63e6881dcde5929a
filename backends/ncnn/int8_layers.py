"""Int8 layers of ncnn, written with the integers and scales of an ONNX file.

ncnn's own tools for this (ncnn2table, ncnn2int8) are in no Python package, and pnnx reads no
QuantizeLinear. So a model with `-quant=static_int8` becomes float again, pnnx converts it, and each
layer gets back the integers of the node whose weights it has.

Traps, each with a test in tests/backends/ncnn/test_int8_layers.py:

* ncnn has no zero points: inputs are rounded with a scale that covers the largest magnitude.
* Large tiles of Winograd's algorithm overflow with weights of 8 bits, and in small ones integers are
  slower than as a product of matrices. So these layers do without.
* Depthwise convolutions are slower in integers (docs/results/int8.md), and others in groups have one
  scale for each group. Both stay float.

Source: `load_model` of Convolution and InnerProduct in ncnn, `ModelBin`, `get_masked_option`;
`fuse_requantize` in ncnn2int8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.quantization.bias_correction import constant_value
from collage.backends.support.conversion import write_streamed
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir, passes

_INT8_TAG, _FLOATS_FOLLOW, _WORD = 0x000D4B38, b"\0\0\0\0", 4
_LARGEST = 127.0
_KERNELS = ("Conv", "Gemm", "MatMul")
# Where a layer's parameters have the number of outputs, whether it has a bias, and the number of weights.
_OF_CONVOLUTION = ("0", "5", "6")
_LAYERS = {
    **dict.fromkeys(("Convolution", "ConvolutionDepthWise"), _OF_CONVOLUTION),
    **dict.fromkeys(("Convolution1D", "ConvolutionDepthWise1D"), _OF_CONVOLUTION),
    "InnerProduct": ("0", "1", "2"),
}
_AS_INT8 = ("Convolution", "InnerProduct")
_INT8_TERM = "8"
_OF_AN_IMAGE = 4  # dimensions of weights
# A layer whose readers are all integer layers gives them integers in their scale.
_ROUNDS_INPUT, _ROUNDS_OUTPUT = 1, 101
# Parameter 31 of any layer: options of the net that it does without.
_WITHOUT_WINOGRAD = f"31={1 << 6}"
_OUTPUT = re.compile(r"out[0-9]+")


@dataclass(frozen=True)
class Kernel:
    """Weights of a node, outputs first.

    Args:
        weights: in float32, flat.
        integers: the same divided by the scales; None where the node computes in float.
        scales: of the outputs.
        input_scale: of the input.
    """

    weights: np.ndarray
    integers: np.ndarray | None = None
    scales: np.ndarray | None = None
    input_scale: float = 0.0


def suits(index: GraphIndex, node: int) -> bool:
    """Whether ncnn has an integer layer for a node with constant weights."""
    info = index.nodes[node]
    if info.op_type != "Conv":
        return info.op_type in _KERNELS
    shape = index.values[info.inputs[1]].shape or ()
    return info.attributes.get("group", 1) == 1 and len(shape) == _OF_AN_IMAGE


def positions_in_groups(path: Path) -> frozenset[int]:
    """Positions of the convolutions in groups of a model, and of the batch normalization after each."""
    nodes = list(ir.load(path).graph)
    in_groups = [n for n in nodes if n.op_type == "Conv" and n.attributes.get_int("group", 1) > 1]
    after = [n for node in in_groups for n in node.successors() if n.op_type == "BatchNormalization"]
    return frozenset(nodes.index(node) for node in (*in_groups, *after))


def write_float(source: Path, destination: Path) -> list[Kernel]:
    """Write a model that rounds nothing, and give the weights of its kernels.

    Args:
        source: with QuantizeLinear and DequantizeLinear, weights inside.
        destination: the file to write.
    """
    model = ir.load(source)
    found = [_kernel(node) for node in model.graph if node.op_type in _KERNELS]
    for node in [node for node in model.graph if node.op_type == "DequantizeLinear"]:
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        if maker is None:
            array = _dequantized(node)
            value = constant_value(model.graph, f"{node.outputs[0].name}/float", array)
            node.outputs[0].replace_all_uses_with(value)
        elif maker.op_type == "QuantizeLinear" and maker.inputs[0] is not None:
            _pass_on(node, maker.inputs[0])
    passes.RemoveUnusedNodesPass()(model)
    write_streamed(model, destination)
    return [kernel for kernel in found if kernel is not None]


def with_integers(parameters: str, weights: bytes, kernels: Sequence[Kernel]) -> tuple[str, bytes]:
    """A net whose layers have integers where their kernels have them.

    Args:
        parameters: the text of ncnn's `.param` file.
        weights: its `.bin` file.
        kernels: of the model that it was converted from.

    Raises:
        CollageError: a layer has other weights than every kernel, or nothing becomes integers.
    """
    magic, counts, *lines = parameters.splitlines()
    layers = [_Layer.read(line) for line in lines if line.strip()]
    words = np.frombuffer(weights, np.uint32)
    kernels_of: dict[str, Kernel] = {}
    starts = _starts(layers, weights, kernels, kernels_of)
    rounded = {layer.name for layer in layers if _is_rounded(layer, kernels_of)}
    if not rounded:
        raise CollageError("ncnn has no integer layer for anything here; use the target without -quant")
    scales = {
        blob: kernels_of[layer.name].input_scale
        for layer in layers
        if layer.name in rounded and layer.kind != "InnerProduct"
        for blob in layer.reads
    }
    splits = {layer.reads[0]: layer.makes for layer in layers if layer.kind == "Split"}
    made, pieces, cursor = [magic, counts], [], 0
    for layer in layers:
        if layer.name not in rounded:
            made.append(layer.line)
            continue
        kernel, start = kernels_of[layer.name], starts[layer.name]
        end = start + layer.weights + (layer.outputs if layer.has_bias else 0)
        ahead = None if layer.kind == "InnerProduct" else _scale_of(layer.makes[0], scales, splits)
        term = _ROUNDS_INPUT if ahead is None else _ROUNDS_OUTPUT
        made.append(f"{layer.line} {_INT8_TERM}={term} {_WITHOUT_WINOGRAD}")
        pieces += [words[cursor : start - 1], *_packed(kernel, words[start + layer.weights : end])]
        pieces += [] if ahead is None else [np.array([ahead], np.float32)]
        cursor = end
    return "\n".join(made) + "\n", b"".join(piece.tobytes() for piece in (*pieces, words[cursor:]))


@dataclass(frozen=True)
class _Layer:
    """A layer as its line tells it; `weights` is 0 where it has none that are known."""

    line: str
    kind: str
    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    outputs: int = 0
    weights: int = 0
    has_bias: bool = False

    @classmethod
    def read(cls, line: str) -> _Layer:
        kind, name, reads, makes, *rest = line.split()
        end = int(reads) + int(makes)
        blobs = tuple(rest[: int(reads)]), tuple(rest[int(reads) : end])
        if kind not in _LAYERS:
            return cls(line, kind, name, *blobs)
        given = dict(word.split("=") for word in rest[end:])
        outputs, bias, weights = (int(given.get(key, 0)) for key in _LAYERS[kind])
        return cls(line, kind, name, *blobs, outputs, weights, bool(bias))


def _is_rounded(layer: _Layer, kernels_of: Mapping[str, Kernel]) -> bool:
    kernel = kernels_of.get(layer.name)
    return layer.kind in _AS_INT8 and kernel is not None and kernel.integers is not None


def _scale_of(
    blob: str, scales: Mapping[str, float], splits: Mapping[str, Sequence[str]]
) -> float | None:
    """The scale in which all readers of a blob round it; None where one does not, or the net gives it out."""
    readers = splits.get(blob, (blob,))
    if any(_OUTPUT.fullmatch(name) for name in (blob, *readers)):
        return None
    found = {scales.get(reader) for reader in readers}
    return found.pop() if len(found) == 1 else None


def _starts(
    layers: Sequence[_Layer], weights: bytes, kernels: Sequence[Kernel], kernels_of: dict[str, Kernel]
) -> dict[str, int]:
    """At which words the weights of each layer begin; notes the kernels they are of."""
    starts, cursor = {}, 0
    for layer in layers:
        if layer.weights:
            alike = [kernel for kernel in kernels if kernel.weights.size == layer.weights]
            start, kernels_of[layer.name] = _place(layer.name, weights, cursor, alike)
            starts[layer.name] = start
            cursor = start + layer.weights + (layer.outputs if layer.has_bias else 0)
    return starts


def _place(name: str, weights: bytes, cursor: int, kernels: Sequence[Kernel]) -> tuple[int, Kernel]:
    """The word behind the cursor where one of these kernels begins, and the kernel."""
    contents = [_FLOATS_FOLLOW + kernel.weights.tobytes() for kernel in kernels]
    # Between two layers lie the weights of others, seldom any.
    start = cursor * _WORD
    found = [i for i, content in enumerate(contents) if weights.startswith(content, start)]
    if not found:
        places = [_aligned(weights, content, start) for content in contents]
        start = min((place for place in places if place >= 0), default=-1)
        found = [i for i, place in enumerate(places) if place == start >= 0]
    if not found:
        raise CollageError(f"pnnx changed the weights of ncnn's layer {name}, so it has no scales")
    if len({kernels[i].input_scale for i in found}) > 1:
        raise CollageError(f"weights of ncnn's layer {name} have several input scales")
    return start // _WORD + 1, kernels[found[0]]


def _aligned(weights: bytes, content: bytes, start: int) -> int:
    """Where content lies at a whole word; -1 for nowhere."""
    place = weights.find(content, start)
    while place % _WORD and place >= 0:
        place = weights.find(content, place + 1)
    return place


def _packed(kernel: Kernel, bias: np.ndarray) -> list[np.ndarray]:
    """What the file of weights has for an integer layer."""
    assert kernel.integers is not None and kernel.scales is not None
    padded = np.zeros(-(-kernel.integers.size // 4) * 4, np.int8)
    padded[: kernel.integers.size] = kernel.integers
    scales = np.append(np.divide(1, kernel.scales, dtype=np.float32), np.float32(kernel.input_scale))
    return [np.array([_INT8_TAG], np.uint32), padded, bias, scales.astype(np.float32)]


def _kernel(node: ir.Node) -> Kernel | None:
    weight = node.inputs[1]
    if weight is None:
        return None
    maker = weight.producer()
    turns = node.op_type == "MatMul" or (
        node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)
    )
    if maker is None:
        array = None if weight.const_value is None else weight.const_value.numpy()
        return None if array is None else Kernel(_flat(array, turns, np.float32))
    if maker.op_type != "DequantizeLinear" or (integers := _constant(maker.inputs[0])) is None:
        return None
    weights = _flat(_dequantized(maker), turns, np.float32)
    largest = _largest_input(node)
    if largest is None:
        return Kernel(weights)
    count = integers.shape[1 if turns else 0]
    scales = np.broadcast_to(np.asarray(_constant(maker.inputs[1]), np.float32).reshape(-1), count)
    return Kernel(weights, _flat(integers, turns, np.int8), scales, _LARGEST / largest)


def _largest_input(node: ir.Node) -> float | None:
    """The largest magnitude of the range that a node's input is rounded in; None where it is not rounded."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    scale, zero = (_constant(given) for given in maker.inputs[1:3])
    if scale is None or zero is None or scale.size != 1:
        return None
    ends = np.iinfo(zero.dtype)
    reach = max(abs(int(end) - int(zero.reshape(-1)[0])) for end in (ends.min, ends.max))
    return float(scale.reshape(-1)[0]) * reach


def _flat(array: np.ndarray, turns: bool, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(array.T if turns else array, dtype).reshape(-1)


def _dequantized(node: ir.Node) -> np.ndarray:
    """What a DequantizeLinear of a constant gives."""
    stored, scale = (_constant(value) for value in node.inputs[:2])
    zero = _constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if stored is None or scale is None:
        raise CollageError(
            "integers that are no constant are dequantized; use the target without -quant"
        )
    axis = node.attributes.get_int("axis", 1)
    shape = [1] * stored.ndim
    if scale.size > 1:
        shape[axis] = scale.size
    shifted = stored.astype(np.int64) - (
        0
        if zero is None
        else zero.astype(np.int64).reshape(shape if zero.size > 1 else (1,) * stored.ndim)
    )
    return (shifted.astype(np.float32) * scale.astype(np.float32).reshape(shape)).astype(np.float32)


def _constant(value: ir.Value | None) -> np.ndarray | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _pass_on(node: ir.Node, value: ir.Value) -> None:
    """Let all that read a node's result read a value."""
    if not node.outputs[0].is_graph_output():
        node.outputs[0].replace_all_uses_with(value)
        return
    node.op_type = "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, value)

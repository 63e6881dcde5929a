"""Int8 in the file: products and convolutions of a sub-model become integer operators of ai.onnx.

`-quant=dynamic_int8` scales the activations while the model runs: MatMul and Gemm become
DynamicQuantizeLinear, MatMulInteger and a multiplication. `-quant=static_int8` fixes the scales
beforehand, from samples: Conv, MatMul and Gemm stand between QuantizeLinear and DequantizeLinear, which
a runtime fuses into one integer kernel. `-quant=weights_int8` writes only the weights of MatMul and
Gemm in int8. Weights have a scale for each channel. `onnxruntime.quantization` does the first two.

A *quantizable* node becomes an integer kernel; other nodes of the partition stay float, so that a whole
transformer can be one partition. A partition without quantizable nodes is refused: it would be the
float target by another name.

Traps, each with a test:

* Convolutions that are quantized dynamically are slower than in float, so they stay float there
  (docs/results/int8.md).
* The quantizer transposes a Gemm's weight in place under its old shape, and twice where two Gemms share
  it: so it is transposed here, into a weight of its own.
* Without VNNI a pair of products may exceed the 16 bits of their sum: weights get 7 bits there.
* Batch normalization between a convolution and its activation ends the integer kernel: it is folded
  into the weights first.
* Int8 weights shift channels by a constant, which later layers do not average out: `bias_correction`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from collage.backends.contract import CompileContext, Preparation, PreparedParts, SubModel
from collage.backends.machine.hardware import hardware
from collage.backends.numerics.tensor_files import read_samples
from collage.backends.options import Option
from collage.backends.quantization.bias_correction import correct_biases
from collage.backends.quantization.calibration import (
    CALIBRATE,
    MINMAX,
    method_of,
    without_calibrate,
)
from collage.backends.quantization.float_model import fold_normalization, loaded, tidy, turn_weights
from collage.backends.quantization.float_nodes import (
    OPTION,
    keep_float,
    kept_nodes,
    kept_values,
    positions_of,
    read_unrounded,
    refuse_ranges,
)
from collage.backends.quantization.smoothing import SMOOTH, is_smooth, smooth, without_smooth
from collage.backends.quantization.static_int8 import RANGE_BITS, WEIGHTED, idle, write_static
from collage.backends.quantization.weight_only_int8 import write_weights
from collage.backends.support.conversion import cached, write_streamed
from collage.backends.support.file_digests import files_of
from collage.backends.support.predicates import is_constant
from collage.partitioner.candidate import bits
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.lazy import ir, passes
from collage.partitioner.target import Target

DYNAMIC, STATIC, WEIGHTS = "dynamic_int8", "static_int8", "weights_int8"
CALIBRATED = (STATIC, WEIGHTS)
"""Kinds that need samples, and may keep nodes float."""
LEAST_OPSET = 13
"""From here on QuantizeLinear and DequantizeLinear have a scale for each channel."""

_NAME = "quant"
_FILE, _PARTLY = "quantized.onnx", "partly.onnx"
_PRODUCTS = ("MatMul", "Gemm")
_WEIGHTED = {DYNAMIC: _PRODUCTS, STATIC: WEIGHTED, WEIGHTS: _PRODUCTS}
_WITH_VNNI = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}

_MASKS: WeakKeyDictionary[GraphIndex, dict[str, int]] = WeakKeyDictionary()


def options(*choices: str) -> tuple[Option, ...]:
    """`-quant`, for a backend that takes these kinds, `-float`, `-calibrate` and `-smooth`."""
    quant = Option(
        _NAME,
        "none",
        "Weights of products and convolutions as int8 in the file itself (see docs/int8.md).",
        choices=("none", *choices),
    )
    return quant, OPTION, CALIBRATE, SMOOTH


def kind_of(target: Target) -> str | None:
    """The kind of int8 of a target, or None."""
    kind = target.option(_NAME, "none")
    return None if kind == "none" else kind


def without_quant(target: Target) -> Target:
    """The float target of the same runtime."""
    plain = without_smooth(without_calibrate(target))
    return Target(plain.backend, tuple(pair for pair in plain.options if pair[0] != _NAME))


def rounds_inside(target: Target) -> bool:
    """Whether only weights are int8 in the file, and the runtime rounds inputs of products."""
    return kind_of(target) == WEIGHTS


def refuse_float(target: Target) -> str | None:
    """Why `-float`, `-calibrate` or `-smooth` makes no sense as it is given, or None."""
    if is_smooth(target) and (kind_of(target) != STATIC or positions_of(target)):
        return f"-smooth moves ranges into weights: it goes with -quant={STATIC}, without -float"
    if method_of(target) != MINMAX and kind_of(target) != STATIC:
        return f"-calibrate finds ranges of activations: it goes with -quant={STATIC}"
    if positions_of(target) and kind_of(target) not in CALIBRATED:
        return f"-float keeps nodes float within int8: it goes with -quant={' or '.join(CALIBRATED)}"
    return refuse_ranges(target)


def preparation(target: Target, float_results: bool = False) -> Preparation | None:
    """How sub-models are quantized for a target, or None.

    Args:
        target: with or without `-quant`.
        float_results: see `quantize`.
    """
    kind = kind_of(target)
    if kind is None:
        return None
    name = _name(kind, float_results, method_of(target), is_smooth(target))
    return Preparation(name, kind in CALIBRATED, least_opset=LEAST_OPSET)


def _name(kind: str, float_results: bool, method: str, smoothed: bool) -> str:
    if kind == WEIGHTS:
        return f"{kind}, errors fed back, zeros kept"
    name = f"{kind} by {_version()}"
    if kind == STATIC:
        name += f", ranges of {RANGE_BITS} bits, biases corrected"
        name += ", float results" if float_results else ""
        name += f", ranges by {method}" if method != MINMAX else ""
        name += ", smoothed" if smoothed else ""
    return name


def numbers(target: Target) -> str:
    """The number format of products and convolutions on a target that quantizes."""
    said = "int8 and float" if positions_of(target) else "int8"
    return f"{said}: weights in the file, products" if rounds_inside(target) else said


def sense(kind: str) -> str:
    """For which nodes and hardware a kind pays, and whether this is such hardware."""
    nodes = {
        DYNAMIC: "products with constant weights; convolutions stay float, since they get slower",
        STATIC: "convolutions and products with constant weights",
        WEIGHTS: "products with constant weights",
    }[kind]
    here = "which this CPU has" if _has_dot_product() else "which this CPU has not: 7-bit weights here"
    return f"pays for {nodes}, on CPUs with int8 dot products (VNNI, AMX, NEON), {here}"


def refuse_region(index: GraphIndex, nodes: int, target: Target) -> str | None:
    """Why it makes no sense to quantize these nodes (bitset), or None."""
    kind = kind_of(target)
    if kind is None or nodes & quantizable(index, kind) & ~kept_nodes(target, nodes):
        return None
    if nodes & quantizable(index, kind):
        return "-float keeps all that could be int8 here; use the target without -quant"
    reasons = (refusal(index, node, kind) for node in index.nodes if nodes >> node.index & 1)
    return f"nothing here can be {kind}: {next(reasons)}"


def quantizable(index: GraphIndex, kind: str) -> int:
    """The nodes (bitset) that become integer kernels."""
    known = _MASKS.setdefault(index, {})
    if kind not in known:
        taken = (node.index for node in index.nodes if refusal(index, node, kind) is None)
        known[kind] = sum(1 << i for i in taken)
    return known[kind]


def refusal(index: GraphIndex, node: NodeInfo, kind: str) -> str | None:
    """Why a node cannot become an integer kernel, or None."""
    if node.domain or node.op_type not in _WEIGHTED[kind]:
        return f"{node.op} is not one of {', '.join(_WEIGHTED[kind])}"
    if node.opset < LEAST_OPSET:
        return f"the model is of opset {node.opset}, and scales for each channel need {LEAST_OPSET}"
    if not is_constant(index, node, 1):
        return f"{node.op} has no constant weights"
    weight = index.values[node.inputs[1]]
    if weight.dtype != "float32":
        return f"{node.op} has weights of {weight.dtype}, not float32"
    if node.op_type in _PRODUCTS and len(weight.shape or ()) != 2:
        return f"{node.op} has weights of other than two dimensions"
    if node.op_type == "Gemm" and not _is_plain(node):
        return "Gemm transposes its first input or scales its terms"
    return None


def quantize(
    model: SubModel, target: Target, context: CompileContext, float_results: bool = False
) -> SubModel:
    """The sub-model with int8 weights, as a file of its own; from the cache where it is in it.

    Args:
        model: a partition in float.
        target: with `-quant`.
        context: where files are kept.
        float_results: results of static kernels are rounded only where an integer kernel reads them.
            OpenVINO is faster so and errs less; ONNX Runtime has no integer kernel for such a node
            (docs/results/int8.md).

    Raises:
        CollageError: nothing in it can be quantized, or there are no samples to calibrate with.
    """
    kind = kind_of(target)
    assert kind is not None
    if kind in CALIBRATED and model.calibration is None:
        raise CollageError(f"{target} needs samples to calibrate with, and this partition has none")
    sources = files_of(model.path)
    sources += [] if kind == DYNAMIC else [model.calibration or model.path]
    method = method_of(target)
    smoothed = is_smooth(target)
    name = f"{_name(kind, float_results, method, smoothed)} {_has_dot_product()}"

    def make(folder: Path) -> None:
        _make(model, kind, folder, float_results=float_results, method=method, smoothed=smoothed)

    folder = cached(sources, [_FILE], name, make, context.work_dir, context.cache_dir)
    made = replace(model, path=folder / _FILE, prepared=True)
    return _partly(made, model, target, context, float_results) if positions_of(target) else made


def _partly(
    whole: SubModel, model: SubModel, target: Target, context: CompileContext, float_results: bool
) -> SubModel:
    """The int8 model with some nodes float again, which is made quickly and not cached."""
    original, result = loaded(model.path), ir.load(whole.path)
    values = kept_values(target, original)
    fold_normalization(original)
    floats = {node.name or "" for node in original.graph if node.outputs[0].name in values}
    floats |= set(idle(original, floats))
    keep_float(result, original, floats, rounded_results=not float_results)
    passes.RemoveUnusedNodesPass()(result)
    _check(result, model)
    write_streamed(result, context.work_dir / _PARTLY)
    return replace(whole, path=context.work_dir / _PARTLY)


class Int8Parts(PreparedParts):
    """Sub-models cut out of one int8 model, which is faster than quantizing each.

    Args:
        whole: the result of `quantize`.
        model: its argument.
    """

    def __init__(self, whole: SubModel, model: SubModel) -> None:
        original = loaded(model.path)
        fold_normalization(original)
        self._model = loaded(whole.path)
        read_unrounded(self._model, original)

    def cut(self, part: SubModel, path: Path) -> SubModel | None:
        given, made = ([spec.name for spec in specs] for specs in (part.inputs, part.outputs))
        try:
            graph = ir.convenience.extract(self._model.graph, given, made)
        except ValueError:  # a normalization was folded over its border
            return None
        for values, specs in ((graph.inputs, part.inputs), (graph.outputs, part.outputs)):
            for value, spec in zip(values, specs, strict=True):
                value.dtype = ir.DataType.from_numpy(np.dtype(spec.dtype))
                value.shape = ir.Shape(spec.static_shape)
        model = ir.Model(graph, ir_version=self._model.ir_version)
        if not any(value.dtype == ir.DataType.INT8 for value in _weights(model)):
            return None
        write_streamed(model, path)
        return replace(part, path=path, prepared=True)


def _make(
    model: SubModel, kind: str, folder: Path, *, float_results: bool, method: str, smoothed: bool
) -> None:
    source, made = folder / "source.onnx", folder / "made.onnx"
    _write_ready(model.path, source, kind)
    if smoothed:
        ready = loaded(source)
        if not smooth(ready, source, _samples(model)):
            raise CollageError("nothing here can be smoothed; use the target without -smooth")
        tidy(ready)
        ir.save(ready, source)
    logging.getLogger().setLevel(logging.ERROR)  # it gives advice on the root logger
    if kind == DYNAMIC:
        _dynamic(source, made)
        result = ir.load(made)
    elif kind == WEIGHTS:
        write_weights(source, made, _samples(model), _products(source))
        result = ir.load(made)
        passes.RemoveUnusedNodesPass()(result)
    else:
        samples = _samples(model)
        write_static(
            source,
            made,
            samples,
            float_results=float_results,
            reduce_range=not _has_dot_product(),
            method=method,
        )
        result = ir.load(made)
        correct_biases(result, source, samples)
        passes.RemoveUnusedNodesPass()(result)
    _check(result, model)
    for node in result.graph:
        node.metadata_props.clear()
    result.metadata_props.clear()
    ir.save(result, folder / _FILE)
    for file in (source, made):
        file.unlink()


def _write_ready(source: Path, destination: Path, kind: str) -> None:
    """A copy with all weights inside, which the quantizer reads rightly."""
    model = loaded(source)
    if kind in CALIBRATED:
        fold_normalization(model)
    else:
        turn_weights(model)
        tidy(model)
    ir.save(model, destination)


def _products(source: Path) -> frozenset[str]:
    """Names of the nodes that may have int8 weights."""
    model = ir.load(source)
    index = GraphIndex.from_ir(model)
    nodes = list(model.graph)
    return frozenset(nodes[i].name or "" for i in bits(quantizable(index, WEIGHTS)))


def _dynamic(source: Path, destination: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        destination,
        op_types_to_quantize=["MatMul"],  # it makes Gemm into MatMul by itself
        per_channel=True,
        reduce_range=not _has_dot_product(),
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def _samples(model: SubModel) -> list[dict[str, np.ndarray]]:
    assert model.calibration is not None
    samples = read_samples(model.calibration, model.inputs)
    return [{spec.name: sample[spec.name] for spec in model.inputs} for sample in samples]


def _check(result: ir.Model, model: SubModel) -> None:
    foreign = {node.op_type for node in result.graph if node.domain}
    if foreign:
        raise CollageError(
            f"the quantizer made operators outside ai.onnx: {', '.join(sorted(foreign))}"
        )
    names = [value.name for value in (*result.graph.inputs, *result.graph.outputs)]
    if names != [spec.name for spec in (*model.inputs, *model.outputs)]:
        raise CollageError("the quantizer changed the inputs or outputs")
    if not any(value.dtype == ir.DataType.INT8 for value in _weights(result)):
        raise CollageError("nothing in this partition could be quantized")


def _weights(model: ir.Model) -> Iterator[ir.Value]:
    used = {value for node in model.graph for value in node.inputs if value is not None}
    return (v for v in model.graph.initializers.values() if v in used and len(v.shape or ()) > 1)


def _is_plain(node: NodeInfo) -> bool:
    attributes: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "transA": 0, **node.attributes}
    return (attributes["alpha"], attributes["beta"], attributes["transA"]) == (1.0, 1.0, 0)


def _has_dot_product() -> bool:
    return bool(_WITH_VNNI & set(hardware().features))


def _version() -> str:
    import onnxruntime

    return f"onnxruntime.quantization {onnxruntime.__version__}"

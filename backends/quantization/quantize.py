"""Integers in the file: products and convolutions of a sub-model become integer operators.

`dynamic_int8`: MatMul and Gemm become DynamicQuantizeLinear, MatMulInteger and a multiplication.
`static_int8`: Conv, MatMul and Gemm stand between QuantizeLinear and DequantizeLinear, which a runtime
fuses into one integer kernel. `weights_int8`: a DequantizeLinear stands before a float product.
Kinds in blocks: `block_weights`. `onnxruntime.quantization` does all but `weights_int8` and the rounding of
`block_int4_gptq`.

Traps, each with a test:

* Convolutions that are quantized dynamically are slower than in float, so they stay float there
  (docs/results/int8.md).
* The quantizer transposes a Gemm's weight in place under its old shape, and twice where two Gemms share
  it: so it is transposed here, into a weight of its own.
* The quantizer gives copies of a shared bias names that other values may have: so they are copied here.
* Without VNNI a pair of products may exceed the 16 bits of their sum: weights get 7 bits there.
* Batch normalization between a convolution and its activation ends the integer kernel: it is folded
  into the weights first.
* Int8 weights shift channels by a constant, which later layers do not average out: `bias_correction`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collage.backends.contract import CompileContext, Preparation, PreparedParts, SubModel
from collage.backends.numerics.tensor_files import read_samples
from collage.backends.quantization.bias_correction import correct_biases
from collage.backends.quantization.block_weights import DOMAIN, OPERATOR, write_blocks
from collage.backends.quantization.calibration import MINMAX, method_of
from collage.backends.quantization.float_model import (
    add_by_pairs,
    fold_normalization,
    loaded,
    move_strides,
    own_biases,
    tidy,
    turn_weights,
    with_hard_swishes,
)
from collage.backends.quantization.float_nodes import (
    keep_float,
    kept_values,
    positions_of,
    read_unrounded,
)
from collage.backends.quantization.kinds import (
    BITS,
    BLOCKS,
    CALIBRATED,
    DYNAMIC,
    MIXED,
    STATIC,
    WEIGHTS,
    has_dot_product,
    kind_of,
    least_opset,
    quantizable,
)
from collage.backends.quantization.smoothing import is_smooth, smooth
from collage.backends.quantization.static_int8 import RANGE_BITS, idle, write_static
from collage.backends.quantization.weight_only_int8 import write_weights
from collage.backends.support.conversion import cached, write_streamed
from collage.backends.support.file_digests import files_of
from collage.partitioner.candidate import bits
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir, passes
from collage.partitioner.target import Target

_FILE, _PARTLY = "quantized.onnx", "partly.onnx"


@dataclass(frozen=True)
class Kernels:
    """What a runtime's static integer kernels can.

    Args:
        float_results: their results are rounded only where an integer kernel reads them. OpenVINO is
            faster so and errs less; ONNX Runtime has no integer kernel for such a node
            (docs/results/int8.md).
        strides: convolutions of one element may have strides.
    """

    float_results: bool = False
    strides: bool = True


def preparation(target: Target, kernels: Kernels = Kernels()) -> Preparation | None:
    """How sub-models are quantized for a target, or None.

    Args:
        target: with or without `-quant`.
        kernels: of the runtime.
    """
    kind = kind_of(target)
    if kind is None:
        return None
    name = _name(kind, kernels, method_of(target), is_smooth(target))
    return Preparation(name, kind in CALIBRATED, least_opset=least_opset(kind))


def _name(kind: str, kernels: Kernels, method: str, smoothed: bool) -> str:
    if kind == WEIGHTS:
        return f"{kind}, errors fed back, zeros kept"
    name = f"{kind} by {_version()}"
    if kind in BITS:
        return f"{name}, blocks of {BLOCKS[kind]}{', errors fed back' if kind in CALIBRATED else ''}"
    if kind == STATIC:
        name += f", ranges of {RANGE_BITS} bits, biases corrected, sums of two added, own biases"
        name += (
            ", float results, pools on integers, constants added in float, swishes fused"
            if kernels.float_results
            else ""
        )
        name += "" if kernels.strides else ", strides in pools"
        name += f", ranges by {method}" if method != MINMAX else ""
        name += ", smoothed" if smoothed else ""
    return name


def quantize(
    model: SubModel, target: Target, context: CompileContext, kernels: Kernels = Kernels()
) -> SubModel:
    """The sub-model with integer weights, as a file of its own; from the cache where it is in it.

    Args:
        model: a partition in float.
        target: with `-quant`.
        context: where files are kept.
        kernels: of the runtime.

    Raises:
        CollageError: nothing in it can be quantized, or there are no samples to calibrate with.
    """
    kind = kind_of(target)
    assert kind is not None
    if kind in CALIBRATED and model.calibration is None:
        raise CollageError(f"{target} needs samples to calibrate with, and this partition has none")
    sources = files_of(model.path)
    sources += [] if kind not in CALIBRATED else [model.calibration or model.path]
    method = method_of(target)
    smoothed = is_smooth(target)
    name = f"{_name(kind, kernels, method, smoothed)} {has_dot_product()}"

    def make(folder: Path) -> None:
        _make(model, kind, folder, kernels=kernels, method=method, smoothed=smoothed)

    folder = cached(sources, [_FILE], name, make, context.work_dir, context.cache_dir)
    made = replace(model, path=folder / _FILE, prepared=True)
    return _partly(made, model, target, context, kernels) if positions_of(target) else made


def _partly(
    whole: SubModel, model: SubModel, target: Target, context: CompileContext, kernels: Kernels
) -> SubModel:
    """The int8 model with some nodes float again, which is made quickly and not cached."""
    original, result = loaded(model.path), ir.load(whole.path)
    values = kept_values(target, original)
    original = _readable(original, kind_of(target), kernels)
    floats = {node.name or "" for node in original.graph if node.outputs[0].name in values}
    floats |= set(idle(original, kernels.float_results, floats))
    keep_float(result, original, floats, rounded_results=not kernels.float_results)
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
                value.shape = None if spec.shape is None else ir.Shape(spec.shape)
        model = ir.Model(graph, ir_version=self._model.ir_version)
        if not _has_integers(model):
            return None
        write_streamed(model, path)
        return replace(part, path=path, prepared=True)


def _make(
    model: SubModel, kind: str, folder: Path, *, kernels: Kernels, method: str, smoothed: bool
) -> None:
    source, made = folder / "source.onnx", folder / "made.onnx"
    _write_ready(model.path, source, kind, kernels)
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
    elif kind in BITS:
        products, samples = _products(source, kind), _samples(model) if kind in CALIBRATED else []
        write_blocks(source, made, products, BITS[kind], BLOCKS[kind], samples)
        result = ir.load(made)
        passes.RemoveUnusedNodesPass()(result)
    elif kind == WEIGHTS:
        write_weights(source, made, _samples(model), _products(source, kind))
        result = ir.load(made)
        passes.RemoveUnusedNodesPass()(result)
    else:
        samples = _samples(model)
        write_static(
            source,
            made,
            samples,
            float_results=kernels.float_results,
            reduce_range=not has_dot_product(),
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


def _write_ready(source: Path, destination: Path, kind: str, kernels: Kernels) -> None:
    """A copy with all weights inside, which the quantizer reads rightly."""
    model = loaded(source)
    if kind in MIXED:
        model = _readable(model, kind, kernels)
    else:
        turn_weights(model)
        tidy(model)
    ir.save(model, destination)


def _readable(model: ir.Model, kind: str | None, kernels: Kernels) -> ir.Model:
    """A float model in the form in which its kernels become integers; changes the given one."""
    fold_normalization(model)
    if kind != STATIC:
        return model
    add_by_pairs(model)
    own_biases(model)
    if kernels.float_results:
        model = with_hard_swishes(model)
    if not kernels.strides:
        move_strides(model)
    return model


def _products(source: Path, kind: str) -> frozenset[str]:
    """Names of the nodes that may have integer weights."""
    model = ir.load(source)
    index = GraphIndex.from_ir(model)
    nodes = list(model.graph)
    return frozenset(nodes[i].name or "" for i in bits(quantizable(index, kind)))


def _dynamic(source: Path, destination: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        destination,
        op_types_to_quantize=["MatMul"],  # it makes Gemm into MatMul by itself
        per_channel=True,
        reduce_range=not has_dot_product(),
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def _samples(model: SubModel) -> list[dict[str, np.ndarray]]:
    assert model.calibration is not None
    samples = read_samples(model.calibration, model.inputs)
    return [{spec.name: sample[spec.name] for spec in model.inputs} for sample in samples]


def _check(result: ir.Model, model: SubModel) -> None:
    foreign = {node.op_type for node in result.graph if node.domain and not _is_blocked(node)}
    if foreign:
        raise CollageError(
            f"the quantizer made operators outside ai.onnx: {', '.join(sorted(foreign))}"
        )
    names = [value.name for value in (*result.graph.inputs, *result.graph.outputs)]
    if names != [spec.name for spec in (*model.inputs, *model.outputs)]:
        raise CollageError("the quantizer changed the inputs or outputs")
    if not _has_integers(result):
        raise CollageError("nothing in this partition could be quantized")


def _has_integers(model: ir.Model) -> bool:
    """Whether a node has integer weights."""
    if any(map(_is_blocked, model.graph)):
        return True
    used = {value for node in model.graph for value in node.inputs if value is not None}
    weights = (v for v in model.graph.initializers.values() if v in used and len(v.shape or ()) > 1)
    return any(value.dtype == ir.DataType.INT8 for value in weights)


def _is_blocked(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, OPERATOR)


def _version() -> str:
    import onnxruntime

    return f"onnxruntime.quantization {onnxruntime.__version__}"

"""Static int8: scales from samples, and rounding where an integer kernel reads.

`onnxruntime.quantization` does the work. Traps, each with a test in
tests/backends/quantization/test_quantize.py:

* Two runtimes compute a sample with other last bits, and exact scales would differ with them. So ranges
  are widened to few bits.
* A value that no integer kernel reads stays float.
* Pools pick before or after rounding alike. A kernel with float results is fused with the rounding that
  comes right after it, so pools come after the rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from collage.backends.quantization.calibration import MINMAX, ranges_of
from collage.backends.quantization.float_nodes import CLIPPINGS
from collage.partitioner.lazy import ir

WEIGHTED = ("Conv", "MatMul", "Gemm")
"""Operators that become an integer kernel where their weights are constant."""

RANGE_BITS = 8
"""Of the mantissa of a range."""

# These compute on int8 between two integer kernels.
_CARRIERS = ("Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "MaxPool", "Relu")


def write_static(
    source: Path,
    destination: Path,
    samples: Sequence[dict[str, np.ndarray]],
    float_results: bool,
    reduce_range: bool,
    method: str = MINMAX,
) -> None:
    """Write a model with QuantizeLinear and DequantizeLinear around integer kernels and what lies between them.

    Args:
        source: the float model, weights inside; temporary files lie beside it.
        float_results: results of kernels are rounded only where an integer kernel reads them.
        reduce_range: weights of 7 bits.
        method: how ranges are found (`collage.backends.quantization.calibration`).
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    operators = [*WEIGHTED, *_CARRIERS]
    ranges = ranges_of(source, samples, operators, method)
    for name, found in list(ranges.items()):
        low, high = widened(found.lowest, found.highest)
        ranges[name] = TensorData(lowest=low, highest=high)
    quantizer = QDQQuantizer(
        load_model_with_shape_infer(source),
        per_channel=True,
        reduce_range=reduce_range,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=ranges,
        nodes_to_quantize=[],
        nodes_to_exclude=idle(ir.load(source), float_results),
        op_types_to_quantize=operators,
        extra_options={
            "MatMulConstBOnly": True,
            "OpTypesToExcludeOutputQuantization": list(WEIGHTED) if float_results else [],
            "ForceQuantizeNoInputCheck": float_results,  # of what a pool reads
        },
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(destination), False)


def idle(model: ir.Model, float_results: bool, floats: Collection[str] = ()) -> list[str]:
    """Names of carriers that lead to no integer kernel, as residual sums before a normalization.

    In int8 they would only err (docs/results/int8.md). A clipping after a kernel is part of it. So is
    adding a constant to a float result.

    Args:
        model: in float.
        float_results: of kernels.
        floats: names of nodes that stay float.
    """

    def is_kernel(node: ir.Node) -> bool:
        return node.name not in floats and _is_kernel(node)

    busy: set[ir.Node] = set()
    idle = []
    for node in reversed(model.graph):
        uses = [use for value in node.outputs for use in value.uses()]
        leads = any(user in busy or (number == 0 and is_kernel(user)) for user, number in uses)
        clips = node.op_type in CLIPPINGS and any(map(is_kernel, node.predecessors()))
        # Rounding changes where a maximum is.
        carries = node.op_type in _CARRIERS and len(node.outputs) == 1
        carries = carries and not (float_results and _shifts(node))
        if carries and node.name not in floats and (leads or clips):
            busy.add(node)
        elif node.op_type in _CARRIERS:
            idle.append(node.name or "")
    return idle


def _shifts(node: ir.Node) -> bool:
    """Whether a node adds a constant."""
    return (
        any(value is None or value.is_initializer() for value in node.inputs) and node.op_type == "Add"
    )


def _is_kernel(node: ir.Node) -> bool:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return node.op_type in WEIGHTED and weight is not None and weight.is_initializer()


def widened(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A range whose ends have few bits and enclose the given ones; any shape, float32 or float16."""

    def outwards(ends: np.ndarray, toward: np.ufunc) -> np.ndarray:
        mantissa, exponent = np.frexp(ends)
        rounded = np.ldexp(toward(np.ldexp(mantissa, RANGE_BITS)), exponent - RANGE_BITS)
        return np.asarray(rounded, dtype=ends.dtype)

    return outwards(low, np.floor), outwards(high, np.ceil)

"""Low precision without the hardware: values rounded to bfloat16 or float16. For tests.

Cast nodes in a copy of the model round every float32 weight, input and intermediate value. ONNX Runtime
computes it operator by operator (graph optimization off). So errors grow as on a processor with 16-bit
storage and 32-bit accumulation.

The cost is stated, not measured: `call_us` is the time of ONNX Runtime in float32, measured at compile
time, over `-speedup`; a call waits until that time is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collage.backends.contract import (
    Arithmetic,
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    SubModel,
    Unavailable,
)
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.options import THREADS, Option
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.target import Target

_LOW = {"bf16": ir.DataType.BFLOAT16, "f16": ir.DataType.FLOAT16}
_EXACT = Target.parse("onnxruntime -opt=none")
_TIMED_RUNS = 5
_CAST_TAKES_BFLOAT16 = 13
_SPLITTER = "collage.splitter"


class SimulatedBackend(Backend):
    """ONNX Runtime with rounded values and a stated cost."""

    name = "simulated"
    style = "graph"
    summary = "Rounds every value to 16 bits and states its cost; for tests only."
    options = (
        THREADS,
        Option("precision", "bf16", "What values are rounded to.", choices=("bf16", "f16", "f32")),
        Option(
            "speedup",
            "1.6",
            "How many times faster than ONNX Runtime in float32 it says it is.",
            pattern=r"[0-9]+(\.[0-9]+)?",
        ),
    )

    def __init__(self) -> None:
        self._exact = OnnxRuntimeBackend()

    def probe(self) -> Available | Unavailable:
        found = self._exact.probe()
        return Available(f"1 on onnxruntime {found.version}") if isinstance(found, Available) else found

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return self._exact.supports(index, node, _EXACT)

    def arithmetic(self, target: Target) -> Arithmetic:
        precision = target.option("precision", "bf16")
        return Arithmetic() if precision == "f32" else Arithmetic(precision, False, "for tests only")

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        exact = self._exact.compile(model, _EXACT, context)
        speedup = float(target.option("speedup", "1.6")) or 1.0
        precision = target.option("precision", "bf16")
        if precision == "f32":
            return SimulatedExecutable(exact, exact, model, speedup)
        path = context.work_dir / "rounded.onnx"
        rounded = ir.load(model.path)
        ir.external_data.load_to_model(rounded)
        round_values(rounded, _LOW[precision])
        ir.save(rounded, path)
        low = self._exact.compile(SubModel(path, model.inputs, model.outputs), _EXACT, context)
        return SimulatedExecutable(exact, low, model, speedup)


class SimulatedExecutable(Executable):
    """Runs the rounded model, and waits until the stated time is over.

    Args:
        exact: the float32 model, on whose time the stated cost is based.
        low: the rounded model.
        model: what both compute.
        speedup: how many times faster than the float32 model it says it is.
    """

    def __init__(self, exact: Executable, low: Executable, model: SubModel, speedup: float) -> None:
        self._low = low
        self.call_us = _latency_us(exact, model) / speedup
        if exact is not low:
            exact.close()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._low.bind(inputs, outputs)

    def run(self) -> None:
        end_ns = time.perf_counter_ns() + self.call_us * 1000
        self._low.run()
        while time.perf_counter_ns() < end_ns:
            pass

    @property
    def results(self) -> tuple[Array, ...]:
        return self._low.results

    def close(self) -> None:
        self._low.close()


def round_values(model: ir.Model, dtype: ir.DataType) -> None:
    """Round every float32 value of the main graph to a lower precision and back, in place."""
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            low = value.const_value.numpy().astype(dtype.numpy()).astype(np.float32)
            value.const_value = ir.tensor(low, name=value.name)
    for value in [v for v in graph.inputs if not v.is_initializer()]:
        _round_readers(graph, value, dtype)
    for node in list(graph):
        for value in list(node.outputs):
            _round_readers(graph, value, dtype)


def _round_readers(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> None:
    """Let all readers of a value read its rounded copy; a graph output keeps its name."""
    if value.dtype != ir.DataType.FLOAT or not value.name:
        return
    uses, is_output = list(value.uses()), value.is_graph_output()
    casts = dtype != ir.DataType.BFLOAT16 or graph.opset_imports[""] >= _CAST_TAKES_BFLOAT16
    nodes = _casts(value, dtype) if casts else _splits(graph, value)
    rounded = nodes[-1].outputs[0]
    rounded.type, rounded.shape = value.type, value.shape
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(producer, nodes)
    for reader, position in uses:
        reader.replace_input_with(position, rounded)
    if is_output:
        position = list(graph.outputs).index(value)
        rounded.name, value.name = value.name, f"{value.name}__exact"
        graph.outputs[position] = rounded


def _casts(value: ir.Value, dtype: ir.DataType) -> list[ir.Node]:
    down = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))], name=f"{value.name}__down")
    to_float = [ir.AttrInt64("to", int(ir.DataType.FLOAT))]
    return [down, ir.Node("", "Cast", [down.outputs[0]], to_float, name=f"{value.name}__up")]


def _splits(graph: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """Rounding to 8 significant bits by float32 arithmetic, for values below 1e33.

    Source: Veltkamp's splitting; Dekker, Numerische Mathematik 18 (1971).
    """
    if _SPLITTER not in graph.initializers:
        factor = ir.tensor(np.array(2**16 + 1, np.float32), name=_SPLITTER)
        graph.register_initializer(ir.Value(name=_SPLITTER, const_value=factor))
    scaled = ir.Node("", "Mul", [value, graph.initializers[_SPLITTER]], name=f"{value.name}__scaled")
    rest = ir.Node("", "Sub", [scaled.outputs[0], value], name=f"{value.name}__rest")
    rounded = ir.Node("", "Sub", [scaled.outputs[0], rest.outputs[0]], name=f"{value.name}__rounded")
    return [scaled, rest, rounded]


def _latency_us(executable: Executable, model: SubModel) -> float:
    """Median time of a few runs on ones."""
    inputs = [
        np.ones([d or 1 for d in spec.shape or ()], np.dtype(spec.dtype)) for spec in model.inputs
    ]
    executable.bind(inputs, [None] * len(model.outputs))
    times = []
    for _ in range(_TIMED_RUNS):
        start_ns = time.perf_counter_ns()
        executable.run()
        times.append((time.perf_counter_ns() - start_ns) / 1000)
    return float(np.median(times))

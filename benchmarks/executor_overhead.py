"""What the executor adds to the runtimes' own calls.

    python -m benchmarks.executor_overhead [--shapes] [--seconds 4] [--json FILE]

Plans of 1, 4 and 12 partitions alternate between onnxruntime and openvino. Each plan runs in two ways
on the same sessions and buffers: by the executor, and by a hand-written loop of the runtimes' native
calls. Calls of the two alternate, so that a change of the machine's speed affects both. A model of tiny
layers shows the overhead that a large model hides in its noise.

With `--shapes` the height of the tiny model is free (`benchmarks.support.shape_overhead`).

Goal: at most 5 µs or 2 % a partition; at most 50 µs a partition at a size that never ran before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support.interleave import compare
from benchmarks.support.models import benchmark_model
from benchmarks.support.shape_overhead import ShapeOverhead, shape_overheads
from collage.backends.contract import Executable
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.seeded import seeded_inputs
from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor, Step
from tests.models import seeded_input

_PARTITIONS = (1, 4, 12)
_TARGETS = (Target.parse("onnxruntime"), Target.parse("openvino"))


@dataclass(frozen=True)
class Overhead:
    """One plan: medians of a call, what a partition costs more, and by how much the run is longer.

    Args:
        percent_low: with `percent_high` the 95 % interval of `percent`, from paired calls.
    """

    model: str
    partitions: int
    executor_us: float
    by_hand_us: float
    per_partition_us: float
    percent: float
    percent_low: float
    percent_high: float

    @property
    def within_goal(self) -> bool:
        """At most 5 µs a partition or 2 % of the run, within noise."""
        return self.per_partition_us <= 5.0 or self.percent_low <= 2.0


def tiny_model(path: Path, blocks: int = 12, channels: int = 16, height: int | str = 8) -> Path:
    """Inverted residuals as in MobileNet, 8 pixels wide."""
    nodes, weights = [], []

    def convolution(number: int, source: str, inputs: int, outputs: int, size: int, group: int) -> str:
        name = f"c{number}"
        weights.append(
            numpy_helper.from_array(
                seeded_input((outputs, inputs // group, size, size), "float32", number) / 8, f"{name}_w"
            )
        )
        pads = [size // 2] * 4
        nodes.append(
            helper.make_node("Conv", [source, f"{name}_w"], [name], name=name, group=group, pads=pads)
        )
        return name

    value = "x"
    for block in range(blocks):
        wide = convolution(3 * block, value, channels, 4 * channels, 1, 1)
        nodes.append(helper.make_node("Relu", [wide], [f"r{block}"], name=f"r{block}"))
        deep = convolution(3 * block + 1, f"r{block}", 4 * channels, 4 * channels, 3, 4 * channels)
        narrow = convolution(3 * block + 2, deep, 4 * channels, channels, 1, 1)
        nodes.append(helper.make_node("Add", [value, narrow], [f"a{block}"], name=f"a{block}"))
        value = f"a{block}"
    shape = [1, channels, height, 8]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path
    )
    return path


def native_call(executable: Executable) -> Callable[[], Any]:
    """The runtime's own call, on the session and buffers of an executable."""
    own: Any = executable
    if hasattr(own, "_request"):
        infer: Callable[[], Any] = own._request.infer
        return infer
    session, binding = own._session, own._binding
    return lambda: session.run_with_iobinding(binding)


def overhead(name: str, model: Model, partitions: int, seconds: float, folder: Path) -> Overhead:
    """Measure one plan: cut at waists into parts of about the same number of nodes."""
    laid = line(model.index, model.index.all_nodes)
    count = len(laid.order)
    waists = [
        min(laid.waists, key=lambda w: abs(w - count * i / partitions)) for i in range(partitions)
    ]
    ends = [*sorted(set(waists)), count]
    regions, compiled = RegionFiles(model, folder), CompiledRegions(default_threads())
    steps = []
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        region = regions.get(laid.run(start, end))
        executable = compiled.get(str(i), region, _TARGETS[i % 2])
        steps.append(Step(executable, region.inputs, region.outputs))
    inputs = [model.index.values[value] for value in model.index.inputs]
    executor = Executor(steps, inputs, model.index.outputs)
    executor.bind()
    executor.feed(seeded_inputs(inputs, 0))
    calls = [native_call(step.executable) for step in steps]

    def by_hand() -> None:
        for call in calls:
            call()

    ours, theirs = _in_turns(executor.run, by_hand, seconds)
    more = statistics.median(a - b for a, b in zip(ours, theirs, strict=True)) / len(steps)
    ratio = compare(ours, theirs)
    compiled.close()
    return Overhead(
        model=name,
        partitions=len(steps),
        executor_us=statistics.median(ours),
        by_hand_us=statistics.median(theirs),
        per_partition_us=more,
        percent=100 * (ratio.ratio - 1),
        percent_low=100 * (ratio.low - 1),
        percent_high=100 * (ratio.high - 1),
    )


def _in_turns(
    one: Callable[[], None], other: Callable[[], None], seconds: float
) -> tuple[list[float], list[float]]:
    for _ in range(5):
        one()
        other()
    times: tuple[list[float], list[float]] = ([], [])
    clock = time.perf_counter_ns
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # The first of two calls finds other caches than the second: the two change places from pair to pair.
        for which in (0, 1) if len(times[0]) % 2 else (1, 0):
            begin = clock()
            (one, other)[which]()
            times[which].append((clock() - begin) / 1e3)
    return times


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing for each plan")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers here too")
    parser.add_argument("--shapes", action="store_true", help="sizes that ran before, and new ones")
    chosen = parser.parse_args()
    if chosen.shapes:
        _shapes(chosen.seconds, chosen.json)
    else:
        _fixed(chosen.seconds, chosen.json)


def _shapes(seconds: float, json_path: Path | None) -> None:
    found: list[ShapeOverhead] = []
    print(
        f"{'calls':10} {'parts':>5} {'executor µs':>12} {'by hand µs':>12} {'µs a part':>10} {'%':>7}"
    )
    with tempfile.TemporaryDirectory() as name:
        source = tiny_model(Path(name) / "tiny.onnx", height="height")
        inferred = Path(name) / "inferred.onnx"
        onnx.shape_inference.infer_shapes_path(source, inferred)
        model = Model.open(inferred)
        for partitions in _PARTITIONS:
            for one in shape_overheads(model, partitions, seconds, Path(name) / str(partitions)):
                found.append(one)
                _print(one.kind, one)
    _write(found, json_path)


def _fixed(seconds: float, json_path: Path | None) -> None:
    found: list[Overhead] = []
    print(
        f"{'model':10} {'parts':>5} {'executor µs':>12} {'by hand µs':>12} {'µs a part':>10} {'%':>7}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = {
            "tiny": tiny_model(folder / "tiny.onnx"),
            "resnet50": benchmark_model("light_resnet50").path,
        }
        for model_name, source in sources.items():
            place = folder / model_name
            place.mkdir()
            normalize(source, place, {})
            model = Model.open(place / "model.onnx")
            for partitions in _PARTITIONS:
                parts = place / f"parts-{partitions}"
                one = overhead(model_name, model, partitions, seconds, parts)
                found.append(one)
                _print(one.model, one)
    _write(found, json_path)


def _print(name: str, one: Overhead | ShapeOverhead) -> None:
    print(
        f"{name:10} {one.partitions:5} {one.executor_us:12.1f} {one.by_hand_us:12.1f} "
        f"{one.per_partition_us:10.2f} {one.percent:7.2f} ({one.percent_low:.2f} to {one.percent_high:.2f})"
        f"{'' if one.within_goal else '  misses the goal'}"
    )


def _write(found: Sequence[Overhead | ShapeOverhead], json_path: Path | None) -> None:
    text = json.dumps([{**asdict(one), "within_goal": one.within_goal} for one in found], indent=1)
    if json_path is not None:
        json_path.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

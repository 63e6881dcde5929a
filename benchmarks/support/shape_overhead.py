"""What the executor adds to the runtimes' own calls where the height of an image is free.

Three kinds of calls, each of the executor and of a hand-written loop over the runtimes' native calls:

* `repeated`: sizes in random order that ran before. By hand, each size has bindings that were prepared.
* `new`: sizes that never ran before. By hand, arrays go from one runtime's call to the next.
* `second`: the call after `new`, in which the executor makes the places of that size. By hand it is the
  same call as for `new`.

The loop by hand has compiled models of its own, so that both meet each size for the first time.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.interleave import compare
from collage.backends.contract import SubModel
from collage.backends.machine.process_policy import default_threads
from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step

Array = np.ndarray
Call = Callable[[], object]
TARGETS = (Target.parse("onnxruntime"), Target.parse("openvino"))
_KEPT_SIZES = tuple(range(4, 20, 2))
_NEW_SIZES = tuple(range(21, 221))


@dataclass(frozen=True)
class ShapeOverhead:
    """Calls of one kind on one plan: medians, and what a partition costs more.

    Args:
        percent_low: with `percent_high` the 95 % interval of `percent`, from paired calls.
    """

    kind: str
    partitions: int
    executor_us: float
    by_hand_us: float
    per_partition_us: float
    percent: float
    percent_low: float
    percent_high: float

    @property
    def within_goal(self) -> bool:
        """At most 5 µs a partition or 2 % for sizes that ran before, and 50 µs for new ones; `second` has no goal."""
        if self.kind == "repeated":
            return self.per_partition_us <= 5.0 or self.percent_low <= 2.0
        return self.kind == "second" or self.per_partition_us <= 50.0


class _ByHand:
    """The partitions as one would call their runtimes without an executor."""

    def __init__(self, models: Sequence[SubModel], compiled: CompiledRegions) -> None:
        self._models = models
        self._own: list[Any] = [
            compiled.get(f"by hand {i}", model, TARGETS[i % 2]) for i, model in enumerate(models)
        ]

    def call(self, value: Array) -> Array:
        """Arrays in, arrays out."""
        for model, own in zip(self._models, self._own, strict=True):
            if hasattr(own, "_request"):
                value = own._request.infer({0: value}, share_inputs=True)[0]
            else:
                value = own._session.run(None, {model.inputs[0].name: value})[0]
        return value

    def prepared(self, value: Array) -> Call:
        """A call with bindings, and an inference request, for one size."""
        calls: list[Call] = []
        place = np.copy(value)
        for model, own in zip(self._models, self._own, strict=True):
            made = np.empty_like(value)
            if hasattr(own, "_request"):
                calls.append(_openvino_call(own, place, made))
            else:
                calls.append(_onnxruntime_call(own, model, place, made))
            place = made
        start = np.copy(value)

        def run() -> None:
            np.copyto(start, value)
            for call in calls:
                call()

        return run


def _openvino_call(own: Any, given: Array, made: Array) -> Call:
    import openvino

    request = own._compiled.create_infer_request()
    kept = [openvino.Tensor(array, shared_memory=True) for array in (given, made)]
    request.set_input_tensor(0, kept[0])
    request.set_output_tensor(0, kept[1])
    return lambda: (request.infer(), kept, given, made)


def _onnxruntime_call(own: Any, model: SubModel, given: Array, made: Array) -> Call:
    from onnxruntime import OrtValue

    values = [OrtValue.ortvalue_from_numpy(given), OrtValue.ortvalue_from_numpy(made)]
    binding = own._session.io_binding()
    binding.bind_ortvalue_input(model.inputs[0].name, values[0])
    binding.bind_ortvalue_output(model.outputs[0].name, values[1])
    return lambda: (own._session.run_with_iobinding(binding), values, given, made)


def shape_overheads(model: Model, partitions: int, seconds: float, folder: Path) -> list[ShapeOverhead]:
    """Measure one plan of a model with one input and one output, cut at waists."""
    laid = line(model.index, model.index.all_nodes)
    count = len(laid.order)
    waists = [
        min(laid.waists, key=lambda w: abs(w - count * i / partitions)) for i in range(partitions)
    ]
    regions, compiled = RegionFiles(model, folder), CompiledRegions(default_threads())
    models = [regions.get(laid.run(a, b)) for a, b in itertools.pairwise([*sorted(set(waists)), count])]
    steps = [
        Step(compiled.get(str(i), part, TARGETS[i % 2]), part.inputs, part.outputs)
        for i, part in enumerate(models)
    ]
    (name,) = model.index.inputs
    executor = Executor(steps, [model.index.values[name]], model.index.outputs)
    executor.bind()
    by_hand = _ByHand(models, compiled)

    def ours(value: Array) -> None:
        executor.feed({name: value})
        executor.run()

    channels = (model.index.values[name].shape or ())[1]
    generator = np.random.default_rng(0)
    values = {
        size: generator.standard_normal((1, channels or 1, size, 8), np.float32)
        for size in (*_KEPT_SIZES, *_NEW_SIZES)
    }
    prepared = {size: by_hand.prepared(values[size]) for size in _KEPT_SIZES}
    new, second = _Pairs(), _Pairs()
    for size in random.Random(0).sample(_NEW_SIZES, len(_NEW_SIZES)):
        for pairs in (new, second):
            pairs.add(lambda: ours(values[size]), lambda: by_hand.call(values[size]))  # noqa: B023
    for size in _KEPT_SIZES:
        for _ in range(3):
            ours(values[size])
            prepared[size]()
    repeated, end, sizes = _Pairs(), time.monotonic() + seconds, random.Random(1)
    while time.monotonic() < end:
        size = sizes.choice(_KEPT_SIZES)
        repeated.add(lambda: ours(values[size]), prepared[size])  # noqa: B023
    compiled.close()
    kinds = {"repeated": repeated, "new": new, "second": second}
    return [pairs.overhead(kind, len(steps)) for kind, pairs in kinds.items()]


class _Pairs:
    """Calls of the executor and of the loop by hand, made in turn."""

    def __init__(self) -> None:
        self._times: tuple[list[float], list[float]] = ([], [])

    def add(self, ours: Call, theirs: Call) -> None:
        """Time one call of each; the first one changes from pair to pair."""
        clock = time.perf_counter_ns
        for which in (0, 1) if len(self._times[0]) % 2 else (1, 0):
            begin = clock()
            (ours, theirs)[which]()
            self._times[which].append((clock() - begin) / 1e3)

    def overhead(self, kind: str, partitions: int) -> ShapeOverhead:
        ours, theirs = self._times
        ratio = compare(ours, theirs)
        return ShapeOverhead(
            kind=kind,
            partitions=partitions,
            executor_us=statistics.median(ours),
            by_hand_us=statistics.median(theirs),
            per_partition_us=statistics.median(a - b for a, b in zip(ours, theirs, strict=True))
            / partitions,
            percent=100 * (ratio.ratio - 1),
            percent_low=100 * (ratio.low - 1),
            percent_high=100 * (ratio.high - 1),
        )

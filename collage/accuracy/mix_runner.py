"""Runs mixes of exact and reduced blocks in this process, and remembers their errors.

Terms as in `collage.accuracy.error_model`. A block is compiled for a target when it is first needed, so
a mix costs one inference for each sample; values before its first reduced block are known from the
exact run.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collage.accuracy.error_model import Block, ReducedNodes, targets_of
from collage.accuracy.mix_partitions import MixPartition, mixable_pairs, partitions_of
from collage.accuracy.task_errors import MixRun, SearchTask, TaskErrors
from collage.backends.contract import CompileContext, PreparedParts, SubModel, ready
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.tensor_files import read_expected, read_samples, write_samples
from collage.backends.registry import backend_of, resolve
from collage.backends.sandbox.run import send_message
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step

# With an error this many times the largest goal the other samples do not run: in blocks, and as a plan.
_HOPELESS, _HOPELESS_PLAN = 3.0, 1.5
# Pieces that stay compiled: each may have most of the weights.
_MOST_PIECES = 6


@dataclass(frozen=True)
class MixResult:
    """A mix that was run."""

    reduced: ReducedNodes  # nodes on each reduced target (bitsets)
    error: float  # of the model's outputs
    apart: bool = False  # whether reduced blocks stay partitions of their own in its plan
    latency_us: float = math.inf  # of its shortest run as a plan; infinite where it did not run as one


@dataclass(frozen=True)
class BlockSearchRequest:
    """A search of blocks in a child."""

    model: Path  # file of the normalized model
    targets: tuple[Target, ...]  # the exact one first
    times_us: tuple[tuple[float, ...], ...]  # per target the time of each node in context
    inputs: tuple[TensorSpec, ...]  # the graph's inputs
    samples_file: Path  # inputs of every sample
    expected_file: Path  # reference outputs for each
    used_samples: int  # how many of them mixes are chosen by; the others are held out
    metric: str  # how an output's error is measured
    counted: bool  # whether differences are counted, since somebody else judges results
    error_limits: tuple[float, ...]  # each gets an answer; the most important first
    threads: int  # of one call
    budget_s: float = 40.0  # time for running mixes
    cache_dir: Path | None = None  # for what is converted or compiled; None for none
    known: tuple[MixResult, ...] = ()  # mixes that ran before, in blocks
    known_joined: tuple[MixResult, ...] = ()  # mixes that ran before as plans
    cuts: tuple[int, ...] = ()  # of the line before; empty to begin anew
    task: SearchTask | None = None  # with it errors are shares of what the task allows


class MixRunner:
    """Runs mixes and remembers their errors.

    Args:
        request: samples, targets and metric.
    """

    def __init__(self, request: BlockSearchRequest, model: Model, compiled: CompiledRegions) -> None:
        self.request = request
        self.compiled = compiled
        self.index = model.index
        self.regions = RegionFiles(model, Path("regions").absolute())
        self.samples = read_samples(request.samples_file, request.inputs)
        self.expected = read_expected(request.expected_file, ())
        self.used, self.held_out = slice(request.used_samples), slice(request.used_samples, None)
        self.errors: dict[ReducedNodes, float] = {mix.reduced: mix.error for mix in request.known}
        self.held_out_errors: dict[ReducedNodes, float] = {}
        self.joined_errors: dict[ReducedNodes, float] = {
            m.reduced: m.error for m in request.known_joined
        }
        self.joined_us: dict[ReducedNodes, float] = {
            m.reduced: m.latency_us for m in request.known_joined
        }
        self.task = None if request.task is None else TaskErrors(request.task)
        self.inside = mixable_pairs(request.targets)
        self.runs: dict[ReducedNodes, MixRun] = {}  # with a task, of the mixes in `errors`
        self.joined_runs: dict[ReducedNodes, MixRun] = {}
        self.pieces: dict[MixPartition, str] = {}  # folder names, in the order of use
        self.run_s = math.inf  # the shortest run of the latest mix
        self.blocks: Sequence[Block] = ()
        self.steps: dict[MixPartition, Step] = {}
        self.refused: set[MixPartition] = set()
        self._prepared: dict[int, PreparedParts | None] = {}

    def use(self, blocks: Sequence[Block]) -> None:
        """Use other blocks; known errors stay."""
        self.blocks = blocks
        self.known_values = self.exact_values()
        self._prefix_values: dict[int, list[dict[str, np.ndarray]]] = {}

    def step(self, part: MixPartition, joined: bool = False) -> Step | None:
        """A part compiled for its target; None where that refuses it.

        Args:
            part: a block, or several.
            joined: whether it is in few mixes only, so that it is not worth caching.
        """
        if part not in self.steps and part not in self.refused:
            send_message(part.target)
            model = self.regions.get(part.nodes)
            name = model.path.parent.name
            try:
                if part.target:
                    model = self.calibrated(model)
                    model = model if joined else self._cut_out(part.target, model) or model
                target = part.on(self.request.targets)
                executable = self.compiled.get(name, model, target, lasting=not joined)
            except CollageError:
                if part.target == 0:
                    raise
                self.refused.add(part)
                return None
            self.steps[part] = Step(executable, model.inputs, model.outputs)
        return self.steps.get(part)

    def _cut_out(self, target: int, model: SubModel) -> SubModel | None:
        """A block cut from the whole model as its target prepares it, where that may be mixed in a partition."""
        wide = self.request.targets[target]
        if not any(backend_of(wide).mixes_with(wide, other) for other in self.request.targets):
            return None
        if target not in self._prepared:
            whole = self.calibrated(self.regions.get(self.index.all_nodes))
            folder = Path(tempfile.mkdtemp(dir=".")).absolute()
            context = CompileContext(self.request.threads, folder, self.request.cache_dir)
            # Targets of mixes were measured on the whole model, so it can be prepared.
            backend = resolve(wide)
            prepared = ready(backend, whole, wide, context)
            self._prepared[target] = backend.prepared_parts(whole, prepared)
        parts = self._prepared[target]
        path = model.path.parent / f"prepared-{target}.onnx"
        return None if parts is None else parts.cut(model, path)

    def calibrated(self, model: SubModel) -> SubModel:
        """A block with samples of its inputs, for targets that calibrate."""
        path = model.path.parent / "calibration.npz"
        if not path.exists():
            known = zip(self.samples[self.used], self.known_values[self.used], strict=True)
            values = [{**s, **k} for s, k in known]
            write_samples(path, [{i.name: v[i.name] for i in model.inputs} for v in values])
        return replace(model, calibration=path)

    def error(self, mix: ReducedNodes) -> float:
        """The largest error over the samples that mixes are chosen by; where it is hopeless, over the first alone."""
        if mix not in self.errors:
            self.errors[mix] = self._error(mix, self.used)
        return self.errors[mix]

    def held_out_error(self, mix: ReducedNodes) -> float:
        """The largest error over the other samples; 0 where there are none. With a task: over all that are searched."""
        if mix not in self.held_out_errors:
            if self.task is not None:
                self.held_out_errors[mix] = self._task_error(mix, self.task)
            else:
                self.held_out_errors[mix] = self._worst(mix, self.held_out)
        return self.held_out_errors[mix]

    def _error(self, mix: ReducedNodes, which: slice, joined: bool = False) -> float:
        if self.task is None:
            return self._worst(mix, which, joined)
        numbers = range(len(self.samples))[which]
        made = self.outputs(mix, which, joined)
        run = self.task.run(made, first=numbers.start, count=len(numbers))
        (self.joined_runs if joined else self.runs)[mix] = run
        return self.task.error(run)

    def _task_error(self, mix: ReducedNodes, task: TaskErrors) -> float:
        """Run a mix on all searched samples, and express every error by what that teaches."""
        chosen = (MixPartition(nodes, target) for nodes, target in self._chosen(mix))
        steps = [step for part in chosen if (step := self.step(part)) is not None]
        executor = Executor(steps, self.request.inputs, list(self.expected[0]))
        executor.bind()
        run = task.run(
            self._in_turn(executor, task.samples.inputs()), first=0, count=task.samples.count
        )
        task.learn(mix, run)
        self.errors |= {m: task.error(r) for m, r in self.runs.items()}
        self.joined_errors |= {m: task.error(r) for m, r in self.joined_runs.items()}
        self.held_out_errors |= {m: task.error(r) for m, r in task.measured.items()}
        return task.error(run)

    @staticmethod
    def _in_turn(
        executor: Executor, samples: Iterable[dict[str, np.ndarray]]
    ) -> Iterator[dict[str, np.ndarray]]:
        for sample in samples:
            executor.feed(sample)
            executor.run()
            yield executor.results()

    def joined_error(self, mix: ReducedNodes) -> float:
        """The largest error of a mix as a plan, over all samples.

        Inside a piece a runtime rounds at other places: a mix that keeps a goal in blocks may miss it
        as a plan.
        """
        if mix not in self.joined_errors:
            parts = self.parts(mix, joined=True)
            prefix = self._exact_prefix(mix)
            self.run_s = math.inf
            runs = all(self.step(part, joined=True) is not None for part in parts)
            error = self._error(mix, slice(None), joined=True) if runs else math.inf
            before = [block.times_us[0] for block in self.blocks if block.nodes & prefix.nodes]
            self.joined_errors[mix] = error
            self.joined_us[mix] = sum(before) + self.run_s * 1e6
            self._keep_newest([prefix, *parts])
        return self.joined_errors[mix]

    def _keep_newest(self, parts: Sequence[MixPartition]) -> None:
        """Close the least recently used pieces; blocks stay."""
        blocks = {block.nodes for block in self.blocks}
        for part in parts:
            if part in self.steps and (part.nodes not in blocks or part.others):
                name = self.pieces.pop(part, None) or self.regions.get(part.nodes).path.parent.name
                self.pieces[part] = name
        for part in list(self.pieces)[:-_MOST_PIECES]:
            del self.steps[part]
            self.compiled.drop(self.pieces.pop(part), part.on(self.request.targets))
            if not any(part.nodes == other.nodes for other in self.pieces):
                self.regions.drop(part.nodes)

    def _exact_prefix(self, mix: ReducedNodes) -> MixPartition:
        """The nodes before the first reduced part of a mix."""
        exact = itertools.takewhile(lambda part: not part.target, self._joined(mix))
        return MixPartition(sum(part.nodes for part in exact), 0)

    def _worst(self, mix: ReducedNodes, which: slice, joined: bool = False) -> float:
        worst = 0.0
        limit = (_HOPELESS_PLAN if joined else _HOPELESS) * max(self.request.error_limits)
        for made, wanted in zip(self.outputs(mix, which, joined), self.expected[which], strict=True):
            actual, expected = [made[name] for name in wanted], list(wanted.values())
            request = self.request
            worst = max(worst, output_error(request.metric, actual, expected, request.counted))
            if not worst <= limit:
                break
        return worst

    def outputs(
        self, mix: ReducedNodes, which: slice, joined: bool = False
    ) -> Iterator[dict[str, np.ndarray]]:
        """The model's outputs on some samples; values before the first reduced block are known."""
        found = (self.step(part, joined) for part in self.parts(mix, joined))
        steps = [step for step in found if step is not None]
        made = {spec.name for step in steps for spec in step.outputs}
        read = {spec.name: spec for step in steps for spec in step.inputs if spec.name not in made}
        names = [name for name in self.expected[0] if name in made]
        executor = Executor(steps, tuple(read.values()), names)
        executor.bind()
        known_values = self._joined_prefix_values(mix) if joined else self.known_values
        for sample, known in zip(self.samples[which], known_values[which], strict=True):
            executor.feed({**sample, **known})
            begin_s = time.perf_counter()
            executor.run()
            self.run_s = min(self.run_s, time.perf_counter() - begin_s)
            yield {**known, **executor.results()}

    def _joined_prefix_values(self, mix: ReducedNodes) -> list[dict[str, np.ndarray]]:
        """Known values, with those of the exact prefix computed in one piece, as in the plan: last bits differ."""
        prefix = self._exact_prefix(mix)
        nodes = prefix.nodes
        step = self.step(prefix, True) if nodes and nodes not in self._prefix_values else None
        if step is not None:
            executor = Executor([step], step.inputs, [spec.name for spec in step.outputs])
            executor.bind()
            self._prefix_values[nodes] = []
            for sample, known in zip(self.samples, self.known_values, strict=True):
                executor.feed(sample)
                executor.run()
                self._prefix_values[nodes].append({**known, **executor.results()})
        return self._prefix_values.get(nodes, self.known_values)

    def parts(self, mix: ReducedNodes, joined: bool) -> list[MixPartition]:
        """The parts in order, from the first reduced one on.

        Args:
            mix: of the present blocks.
            joined: whether neighbors are one part where they can be.
        """
        parts = self._joined(mix) if joined else [MixPartition(n, t) for n, t in self._chosen(mix)]
        return list(itertools.dropwhile(lambda part: not part.target, parts))

    def _joined(self, mix: ReducedNodes) -> list[MixPartition]:
        return partitions_of(self._chosen(mix), self.request.targets, self.inside)

    def _chosen(self, mix: ReducedNodes) -> list[tuple[int, int]]:
        chosen = targets_of(self.blocks, mix)
        return [(block.nodes, target) for block, target in zip(self.blocks, chosen, strict=True)]

    def exact_values(self) -> list[dict[str, np.ndarray]]:
        """Per sample every value between blocks and every output, computed exactly."""
        steps = [
            step
            for block in self.blocks
            if (step := self.step(MixPartition(block.nodes, 0))) is not None
        ]
        executor = Executor(steps, self.request.inputs, list(self.expected[0]))
        executor.bind()
        found: list[dict[str, np.ndarray]] = []
        for sample in self.samples:
            executor.feed(sample)
            found.append({})
            executor.check_each(lambda _, name, value: found[-1].update({name: value.copy()}))
        return found

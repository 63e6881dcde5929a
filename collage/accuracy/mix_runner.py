"""Runs mixes of exact and reduced blocks in this process, and remembers their errors.

Terms as in `collage.accuracy.error_model`. Each block is compiled for a target when it is first needed, so a mix costs one
inference for each sample; what stands before its first reduced block is known from the exact run.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collage.accuracy.error_model import Block, Reduced, choices
from collage.accuracy.mix_partitions import Part, inside_pairs, parts_of
from collage.backends.contract import CompileContext, SubModel, ready
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.tensor_files import read_expected, read_samples, write_samples
from collage.backends.quantization.quantize import Int8Parts, kind_of
from collage.backends.registry import resolve
from collage.backends.sandbox.run import send_message
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor, Step

# An error this many times the largest goal is not looked at on the other samples: in blocks, and as a plan.
_HOPELESS, _HOPELESS_PLAN = 3.0, 1.5
# So many pieces of several blocks stay compiled: each may hold most of the weights.
_MOST_PIECES = 6


@dataclass(frozen=True)
class Mix:
    """A mix that was run.

    Args:
        reduced: nodes on each reduced target (bitsets).
        error: of the model's outputs.
        apart: whether reduced blocks stay partitions of their own in its plan, as they were when it was run.
        latency_us: of its shortest run as a plan; infinite where it was not run as one.
    """

    reduced: Reduced
    error: float
    apart: bool = False
    latency_us: float = math.inf


@dataclass(frozen=True)
class Probe:
    """What to try in the child.

    Args:
        model: file of the normalized model.
        targets: the exact one first.
        times_us: per target what each node takes in context.
        inputs: the graph's inputs.
        samples_file: inputs of every sample.
        expected_file: reference outputs for each.
        used_samples: how many of them to choose mixes by; the others are held out, and only say no.
        metric: how an output's error is measured.
        error_limits: errors to stay below, one answer for each; the most important first.
        threads: of one call.
        budget_s: time for trying mixes.
        cache_dir: where what was converted or compiled once is kept; None for nowhere.
        known: mixes that were run before, in blocks.
        known_joined: mixes that were run before as the plans that they become.
        cuts: where the line was cut before; empty to begin anew.
    """

    model: Path
    targets: tuple[Target, ...]
    times_us: tuple[tuple[float, ...], ...]
    inputs: tuple[TensorSpec, ...]
    samples_file: Path
    expected_file: Path
    used_samples: int
    metric: str
    error_limits: tuple[float, ...]
    threads: int
    budget_s: float = 40.0
    cache_dir: Path | None = None
    known: tuple[Mix, ...] = ()
    known_joined: tuple[Mix, ...] = ()
    cuts: tuple[int, ...] = ()


class MixRunner:
    """Runs mixes and remembers their errors.

    Args:
        request: samples, targets and metric.
        model: of the request.
        compiled: owns what is compiled.
    """

    def __init__(self, request: Probe, model: Model, compiled: CompiledRegions) -> None:
        self.request = request
        self.compiled = compiled
        self.index = model.index
        self.regions = RegionFiles(model, Path("regions").absolute())
        self.samples = read_samples(request.samples_file, request.inputs)
        self.expected = read_expected(request.expected_file, ())
        self.used, self.held_out = slice(request.used_samples), slice(request.used_samples, None)
        self.errors: dict[Reduced, float] = {mix.reduced: mix.error for mix in request.known}
        self.held_out_errors: dict[Reduced, float] = {}
        self.joined_errors: dict[Reduced, float] = {m.reduced: m.error for m in request.known_joined}
        self.joined_us: dict[Reduced, float] = {m.reduced: m.latency_us for m in request.known_joined}
        self.inside = inside_pairs(request.targets)
        self.pieces: dict[Part, str] = {}  # folder names; what was used last stands last
        self.run_s = math.inf  # the shortest run of the mix that was run last
        self.blocks: Sequence[Block] = ()
        self.steps: dict[Part, Step] = {}
        self.refused: set[Part] = set()
        self._int8: dict[int, Int8Parts] = {}

    def use(self, blocks: Sequence[Block]) -> None:
        """Cut the model into other blocks; errors known before stay."""
        self.blocks = blocks
        self.known_values = self.exact_values()
        self._prefix_values: dict[int, list[dict[str, np.ndarray]]] = {}

    def step(self, part: Part, joined: bool = False) -> Step | None:
        """A part compiled for its target; None where that refuses it.

        Args:
            part: a block, or several.
            joined: whether it is tried in a few mixes only, so that its blob is not worth keeping.
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
        """A block in int8, as a part of the whole model in int8, where the target is one that goes inside."""
        goes_inside = any(target in pair for pair in self.inside)
        if not goes_inside or kind_of(self.request.targets[target]) is None:
            return None
        if target not in self._int8:
            whole = self.calibrated(self.regions.get(self.index.all_nodes))
            folder = Path(tempfile.mkdtemp(dir=".")).absolute()
            context = CompileContext(self.request.threads, folder, self.request.cache_dir)
            wide = self.request.targets[target]
            # It can be: only targets that were measured on the whole model are mixed in.
            self._int8[target] = Int8Parts(ready(resolve(wide), whole, wide, context), whole)
        return self._int8[target].cut(model, model.path.parent / f"int8-{target}.onnx")

    def calibrated(self, model: SubModel) -> SubModel:
        """A block with what flows into it, for targets that calibrate."""
        path = model.path.parent / "calibration.npz"
        if not path.exists():
            known = zip(self.samples[self.used], self.known_values[self.used], strict=True)
            values = [{**s, **k} for s, k in known]
            write_samples(path, [{i.name: v[i.name] for i in model.inputs} for v in values])
        return replace(model, calibration=path)

    def error(self, mix: Reduced) -> float:
        """The largest error over the samples to choose by; where it is hopeless, over the first alone."""
        if mix not in self.errors:
            self.errors[mix] = self._worst(mix, self.used)
        return self.errors[mix]

    def held_out_error(self, mix: Reduced) -> float:
        """The largest error over the other samples; 0 where there are none."""
        if mix not in self.held_out_errors:
            self.held_out_errors[mix] = self._worst(mix, self.held_out)
        return self.held_out_errors[mix]

    def joined_error(self, mix: Reduced) -> float:
        """The largest error over all samples of the plan that a mix becomes, neighbors of one target in one piece.

        Inside a piece a runtime rounds at other places than between two: a mix that just keeps a goal may miss
        it as a plan.
        """
        if mix not in self.joined_errors:
            parts = self.parts(mix, joined=True)
            prefix = self._exact_prefix(mix)
            self.run_s = math.inf
            runs = all(self.step(part, joined=True) is not None for part in parts)
            error = self._worst(mix, slice(None), joined=True) if runs else math.inf
            before = [block.times_us[0] for block in self.blocks if block.nodes & prefix.nodes]
            self.joined_errors[mix] = error
            self.joined_us[mix] = sum(before) + self.run_s * 1e6
            self._keep_newest([prefix, *parts])
        return self.joined_errors[mix]

    def _keep_newest(self, parts: Sequence[Part]) -> None:
        """Close the pieces that were not used for longest; blocks stay."""
        blocks = {block.nodes for block in self.blocks}
        for part in parts:
            if part in self.steps and (part.nodes not in blocks or part.kept):
                name = self.pieces.pop(part, None) or self.regions.get(part.nodes).path.parent.name
                self.pieces[part] = name
        for part in list(self.pieces)[:-_MOST_PIECES]:
            del self.steps[part]
            self.compiled.drop(self.pieces.pop(part), part.on(self.request.targets))
            if not any(part.nodes == other.nodes for other in self.pieces):
                self.regions.drop(part.nodes)

    def _exact_prefix(self, mix: Reduced) -> Part:
        """What stands before the first part that a mix reduces."""
        exact = itertools.takewhile(lambda part: not part.target, self._joined(mix))
        return Part(sum(part.nodes for part in exact), 0)

    def _worst(self, mix: Reduced, which: slice, joined: bool = False) -> float:
        worst = 0.0
        limit = (_HOPELESS_PLAN if joined else _HOPELESS) * max(self.request.error_limits)
        for made, wanted in zip(self.outputs(mix, which, joined), self.expected[which], strict=True):
            actual = [made[name] for name in wanted]
            worst = max(worst, output_error(self.request.metric, actual, list(wanted.values())))
            if not worst <= limit:
                break
        return worst

    def outputs(
        self, mix: Reduced, which: slice, joined: bool = False
    ) -> Iterator[dict[str, np.ndarray]]:
        """The model's outputs on some samples; what stands before the first reduced block is known."""
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

    def _joined_prefix_values(self, mix: Reduced) -> list[dict[str, np.ndarray]]:
        """Known values, with those that the exact prefix makes computed in one piece, as in the plan.

        In blocks their last bits differ, and with them where all that follows is rounded.
        """
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

    def parts(self, mix: Reduced, joined: bool) -> list[Part]:
        """What runs in turn, from the first that is not exact on.

        Args:
            mix: of the blocks as they are now.
            joined: whether neighbors that can be one are one.
        """
        parts = self._joined(mix) if joined else [Part(*block) for block in self._chosen(mix)]
        return list(itertools.dropwhile(lambda part: not part.target, parts))

    def _joined(self, mix: Reduced) -> list[Part]:
        return parts_of(self._chosen(mix), self.request.targets, self.inside)

    def _chosen(self, mix: Reduced) -> list[tuple[int, int]]:
        chosen = choices(self.blocks, mix)
        return [(block.nodes, target) for block, target in zip(self.blocks, chosen, strict=True)]

    def exact_values(self) -> list[dict[str, np.ndarray]]:
        """Per sample every value between blocks and every output, computed exactly."""
        steps = [step for block in self.blocks if (step := self.step(Part(block.nodes, 0))) is not None]
        executor = Executor(steps, self.request.inputs, list(self.expected[0]))
        executor.bind()
        found: list[dict[str, np.ndarray]] = []
        for sample in self.samples:
            executor.feed(sample)
            found.append({})
            executor.check_each(lambda _, name, value: found[-1].update({name: value.copy()}))
        return found

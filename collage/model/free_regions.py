"""Sub-models of a model with free dimensions; what a target rewrites is rewritten once for all sizes.

Terms: the *form* of a plan says which of its partitions are rewritten for which targets. An artifact is one file, so all
its plans have one form.

Invariant: integers have the same scales and weights at every size: they are fitted to the samples of all shapes at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from collage.backends.contract import SubModel
from collage.backends.options import THREADS
from collage.backends.registry import backend_of
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.model.preparation import prepare_parts
from collage.model.sub_models import RegionFiles, Values
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.fixed_copy import write_fixed
from collage.partitioner.graph import weights
from collage.partitioner.graph.model import Model
from collage.partitioner.lazy import ir
from collage.partitioner.target import Target
from collage.runner import Runner

Key = tuple[int, Target]
"""The nodes of a partition that is rewritten, and for which target; its threads change nothing in the file."""
Form = frozenset[Key]

_TIMEOUT_S, _LEAST_S = 1800.0, 30.0


def form_of(plan: Plan) -> Form:
    """Which partitions of a plan are rewritten for which targets; empty where none is."""
    return frozenset(key for partition in plan.partitions if (key := key_of(partition)) is not None)


def key_of(partition: Candidate) -> Key | None:
    """What tells a rewritten partition from others; None where its target rewrites nothing."""
    target = partition.target
    if backend_of(target).preparation(target) is None:
        return None
    options = tuple(pair for pair in target.options if pair[0] != THREADS.name)
    return partition.nodes, Target(target.backend, options)


class FreeRegions(RegionFiles):
    """Sub-models of a model with free dimensions.

    Args:
        model: the model.
        directory: where the files go.
        calibrate: per sample of all shapes the values named; None where no target calibrates.
        runner: where partitions are rewritten.
        threads: of one call.
        cancel: stops rewriting when set.
    """

    def __init__(
        self,
        model: Model,
        directory: Path,
        calibrate: Values | None,
        runner: Runner,
        threads: int,
        cancel: threading.Event | None = None,
    ) -> None:
        super().__init__(model, directory, calibrate, mapped=True)
        self._folder, self._runner, self._threads = directory, runner, threads
        self._cancel = cancel
        self._rewritten: dict[Key, SubModel] = {}
        self._failures: dict[Key, str] = {}

    def rewrite(self, plans: Iterable[Plan], until_s: float = math.inf) -> None:
        """Rewrite the partitions of plans whose targets do that; what fails is told by `refusal`.

        Args:
            plans: the more important ones first.
            until_s: on the monotonic clock; one that takes longer fails, but for half a minute each.
        """
        for plan in plans:
            for partition in plan.partitions:
                key = key_of(partition)
                if key is None or key in self._rewritten or key in self._failures:
                    continue
                try:
                    seconds = max(_LEAST_S, until_s - time.monotonic())
                    self._rewritten[key] = self._made(partition, min(_TIMEOUT_S, seconds))
                except ChildFailed as failure:
                    self._failures[key] = f"{partition.target} cannot rewrite it: {failure.reason}"

    def refusal(self, plan: Plan) -> str | None:
        """Why a partition of a plan could not be rewritten, or None."""
        return next((self._failures[key] for key in form_of(plan) if key in self._failures), None)

    def of(self, partition: Candidate) -> SubModel:
        key = key_of(partition)
        return super().of(partition) if key is None else self._rewritten[key]

    def at(self, bound: Model, directory: Path) -> RegionFiles:
        """Sub-models of the model bound to one shape; rewritten partitions are those of all sizes, bound."""
        return _BoundRegions(self, bound, directory)

    def _made(self, partition: Candidate, timeout_s: float) -> SubModel:
        folder = self._folder / f"rewritten-{len(self._rewritten) + len(self._failures)}"
        work, kept = folder / "made", self._folder / "kept"
        work.mkdir(parents=True)
        kept.mkdir(exist_ok=True)
        source = self.get(partition.nodes)
        (made,) = self._runner.run(
            prepare_parts,
            [(source, partition.target)],
            work.resolve(),
            self._threads,
            kept.resolve(),
            limits=ChildLimits(timeout_s=timeout_s),
            cancel=self._cancel,
        )
        # Weights beside the file are mapped, and shared by copies for one shape.
        path = folder / "model.onnx"
        model = ir.load(made.path)
        initializers = list(model.graph.initializers.values())
        weights.write(weights.whole_structure(model), initializers, path, 0)
        whole: SubModel = made
        return replace(whole, path=path, calibration=None)


class _BoundRegions(RegionFiles):
    """Sub-models of a model bound to one shape."""

    def __init__(self, free: FreeRegions, bound: Model, directory: Path) -> None:
        super().__init__(bound, directory, mapped=True)
        self._free, self._folder = free, directory
        self._fixed: dict[Key, SubModel] = {}

    def of(self, partition: Candidate) -> SubModel:
        key = key_of(partition)
        if key is None:
            return super().of(partition)
        if key not in self._fixed:
            self._fixed[key] = self._made(self._free.of(partition))
        return self._fixed[key]

    def _made(self, free: SubModel) -> SubModel:
        values = self.model.index.values
        inputs, outputs = (
            tuple(values[s.name] for s in specs) for specs in (free.inputs, free.outputs)
        )
        if not all(spec.is_static for spec in inputs):
            return free  # there is no one shape to compile for
        path = self._folder / f"fixed-{len(self._fixed)}" / "model.onnx"
        path.parent.mkdir(parents=True)
        write_fixed(free.path, [spec.static_shape for spec in inputs], path)
        return replace(free, path=path, inputs=inputs, outputs=outputs)

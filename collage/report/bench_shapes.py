"""The plans of an artifact with free dimensions against every single target, timed again at each representative shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.artifact.verify import sample_of
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.comparison import is_judged
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.tensor_files import write_samples
from collage.events import Listener
from collage.model.binding import bind
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.annotate import ArtifactPlan, read_plan
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.report.shapes import not_told
from collage.shapes.classes import SHAPES_KEY, ServedShapes
from collage.shapes.space import Shape
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import TimingRequest
from collage.timing.timed_plan import TimedPlan, identity


def bench_shapes(path: Path, work_dir: Path, listener: Listener, processes: int) -> dict[str, Any]:
    """Time the plan of each representative shape and every single target, compiled in both ways.

    Single targets are left out where partitions were rewritten (int8): the file has no other nodes.

    Args:
        path: the artifact.
        work_dir: an empty folder.
        listener: is told about every comparison.
        processes: how often all are built and timed.

    Raises:
        BadInputError: the file is no artifact with free dimensions.
    """
    stored, report = read_plan(path), read_report(path)
    served = ServedShapes.from_text(stored.metadata[SHAPES_KEY])
    targets = [Target.parse(text) for text in report["targets"]]
    plans = [one.plan.plan for one in served.classes]
    plans += [one.hot.plan for one in served.classes if one.hot is not None]
    done = {nodes for text in plans for nodes in decode_plan(stored.model, text).prepared}
    targets = [] if done else targets
    free = RegionFiles(stored.model, work_dir / "free", prepared=done, mapped=True)
    rows = []
    for number, shape in enumerate(served.space.shapes):
        held = _AtShape(stored, served, shape, work_dir / f"shape-{number}", free, done, listener)
        rows.append(held.timed(targets, report, processes))
    told = not_told((), [text for row in rows for text in row.pop("warnings")])
    if done:
        told.append(
            "the artifact holds rewritten nodes (int8), so single targets of the given model are not timed beside it; the "
            "report of its tuning has them"
        )
    return {"shapes": rows, "warnings": told}


@dataclass(frozen=True)
class _AtShape:
    stored: ArtifactPlan
    served: ServedShapes
    shape: Shape
    folder: Path
    free: RegionFiles
    done: Collection[int]
    listener: Listener

    def timed(
        self, targets: Sequence[Target], report: Mapping[str, Any], processes: int
    ) -> dict[str, Any]:
        """A row of the result."""
        model, _ = bind(self.stored.model, self.folder / "model", self.shape.sizes)
        regions = RegionFiles(model, self.folder / "regions", prepared=self.done, mapped=True)
        timer = PlanTimer(regions, self._template(model, report), self.listener)
        number = self.served.class_of(self.shape.sizes)
        own = self.served.classes[number]
        ours = TimedPlan(self._plan(own.plan.plan), "ours", regions=self.free)
        hot = None if own.hot is None else TimedPlan(self._plan(own.hot.plan), "ours, often")
        singles = []
        for target in targets:
            plan = Plan((Candidate(model.index.all_nodes, target, "whole"),))
            # Two instances of one compiled model differ by where their memory lies.
            any_shape = _same(plan, ours) or TimedPlan(
                plan, f"single {target}, any shape", regions=self.free
            )
            this_shape = _same(plan, hot) or TimedPlan(plan, f"single {target}, this shape alone")
            singles.append((any_shape, this_shape))
        known = [ours, *([hot] if hot else []), *(entry for pair in singles for entry in pair)]
        entries = list({id(entry): entry for entry in known}.values())
        timer.time(entries)
        for _ in range(processes - 1):
            timer.time([], again=[entry for entry in entries if entry.timed])
        estimates = timer.standings.estimates

        def us(entry: TimedPlan | None) -> float | None:
            if entry is None or not entry.timed:
                return None
            return estimates.latency_us(entry, ours)[0] if ours.timed else entry.latency_us

        return {
            "sizes": dict(self.shape.sizes),
            "weight": self.shape.weight,
            "class": number,
            "latency_us": us(ours),
            "hot_latency_us": us(hot),
            "infeasible": ours.failure,
            "max_relative_error": ours.error,
            "singles": [
                {
                    "target": str(target),
                    "any_shape_us": us(any_shape),
                    "this_shape_us": us(this_shape),
                    "failure": any_shape.failure,
                }
                for target, (any_shape, this_shape) in zip(targets, singles, strict=True)
            ],
            "warnings": list(timer.warnings()),
        }

    def _plan(self, text: str) -> Plan:
        return decode_plan(self.stored.model, text).plan

    def _template(self, model: Model, report: Mapping[str, Any]) -> TimingRequest:
        index = model.index
        inputs = tuple(index.values[name] for name in index.inputs)
        made = [name for name in index.outputs if name in index.producer]
        proofs = {tuple(proof.sizes.items()): proof.plan for proof in self.served.proofs}
        proof = proofs.get(tuple(self.shape.sizes.items()))
        sample = sample_of(proof, inputs, table_bounds(index))
        reference = Reference(model, [sample], self.folder / "reference")
        samples, expected = self.folder / "samples.npz", self.folder / "expected.npz"
        write_samples(samples, reference.samples)
        write_samples(expected, reference.expected(made))
        return TimingRequest(
            plans=(),
            regions={},
            inputs=inputs,
            outputs=tuple(made),
            samples_file=samples,
            expected_file=expected,
            metric=report["metric"],
            counted=is_judged(report["tolerance"]),
            threads=default_threads(),
            prune=False,
        )


def _same(plan: Plan, entry: TimedPlan | None) -> TimedPlan | None:
    """An entry where it is of this plan."""
    return entry if entry is not None and identity(entry.plan) == identity(plan) else None

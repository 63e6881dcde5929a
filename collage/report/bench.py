"""An artifact's plan against every single target, timed again on this machine (`collage bench`)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.artifact.verification import VERIFICATION_KEY
from collage.artifact.verify import sample_of
from collage.backends.machine.process_policy import default_threads
from collage.backends.measurement.ratio import Ratio
from collage.backends.numerics.comparison import is_judged
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.tensor_files import write_samples
from collage.events import Listener, ignore
from collage.model.reference import Reference, ingest
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.annotate import PLAN_KEY, ArtifactPlan, read_plan
from collage.partitioner.emit.metadata import metadata_of
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.report.bench_shapes import bench_shapes
from collage.shapes.classes import SHAPES_KEY
from collage.timing.decision import choose
from collage.timing.estimates import Estimates
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import TimingRequest
from collage.timing.timed_plan import TimedPlan, identity

# Single targets so many times slower than the fastest are timed in one process only.
_FAR_BEHIND = 3.0
# An interval wider than this gets twice as many processes.
_WIDE = 1.06
_REWRITTEN = "partitions are int8 in the file; give the model that was tuned with --model"


def bench(
    path: Path,
    listener: Listener = ignore,
    against: Path | None = None,
    source: Path | None = None,
    processes: int = 4,
) -> dict[str, Any]:
    """Time the plan and every single target of its report in several fresh processes: see `Bench`, and `bench_shapes`."""
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder:
        if path.is_file() and SHAPES_KEY in metadata_of(path):
            if against is not None or source is not None:
                raise BadInputError(
                    f"{path.name} has free dimensions; it is timed beside single targets only"
                )
            return bench_shapes(path, Path(folder), listener, processes)
        held = Bench(path, Path(folder), listener, against, source)
        held.time(processes)
        return held.found()


class Bench:
    """An artifact's plan beside every single target of its report.

    The first process compiles, the others read its cache, as `load` does: runtimes may run faster what
    they read from a cache. Where the plan is a single target, the two are one and timed once.

    Args:
        work_dir: an empty folder, kept until the last timing; takes what is compiled.
        against: another artifact of the same model, timed in the same rounds.
        source: the model that was tuned; needed for single targets and errors where the artifact has
            other nodes in its partitions' place (int8).

    Raises:
        BadInputError: a file is no artifact, or the two are of different models.
    """

    def __init__(
        self,
        path: Path,
        work_dir: Path,
        listener: Listener = ignore,
        against: Path | None = None,
        source: Path | None = None,
    ) -> None:
        report = read_report(path)
        stored = read_plan(path)
        if SHAPES_KEY in stored.metadata:
            raise BadInputError(f"{path.name} has free dimensions; time it with collage bench")
        index = stored.model.index
        rewritten = any(note.prepared for note in stored.notes)
        inputs = tuple(index.values[name] for name in index.inputs)
        made = [name for name in index.outputs if name in index.producer]
        model = stored.model
        if rewritten and source is not None:
            model = _normalized(source, stored, work_dir)
        sample = sample_of(stored.metadata.get(VERIFICATION_KEY), inputs, table_bounds(model.index))
        reference = Reference(model, [sample], work_dir / "reference")
        samples, expected = work_dir / "samples.npz", work_dir / "expected.npz"
        write_samples(samples, reference.samples)
        write_samples(expected, reference.expected(made))
        (work_dir / "cache").mkdir()
        template = TimingRequest(
            plans=(),
            regions={},
            inputs=inputs,
            outputs=tuple(made),
            samples_file=samples,
            expected_file=expected,
            metric=report["metric"],
            error_limit=None,
            counted=is_judged(report["tolerance"]),
            threads=default_threads(),
            cache_dir=work_dir / "cache",
        )
        done = [
            p.nodes
            for p, note in zip(stored.plan.partitions, stored.notes, strict=True)
            if note.prepared
        ]
        regions = RegionFiles(stored.model, work_dir / "regions", prepared=done)
        self._timer = PlanTimer(
            RegionFiles(model, work_dir / "whole", reference.values), template, listener
        )
        self._ours = TimedPlan(stored.plan, "ours", regions=regions)
        self._targets: list[str] = report["targets"]
        self._tolerance: float = report["tolerance"]
        self._singles: dict[str, TimedPlan] = {}
        for text in [] if rewritten and source is None else self._targets:
            whole = Plan((Candidate(model.index.all_nodes, Target.parse(text), "whole"),))
            # Two instances of one compiled model differ by where their memory lies.
            same = not rewritten and identity(whole) == identity(stored.plan)
            self._singles[text] = self._ours if same else TimedPlan(whole, f"single {text}")
        self._other: TimedPlan | None = None
        if against is not None:
            self._other = TimedPlan(_plan_for(stored.model, against), "against", regions=regions)

    def time(self, processes: int = 4) -> None:
        """Time all of them once more.

        Args:
            processes: how often all are built and timed. Twice as often where the speedup's interval is
                wide; single targets far behind the fastest are timed once.
        """
        ours, other = self._ours, self._other
        entries = [
            ours,
            *(e for e in self._singles.values() if e is not ours),
            *([other] if other else []),
        ]
        for count in range(2 * processes):
            if not self._timer.entries:
                self._timer.time(entries)
                continue
            timed = [entry for entry in entries if entry.timed]
            limit = _FAR_BEHIND * min(map(self._estimates.ratio, timed), default=0.0)
            near = [e for e in timed if e is ours or e is other or self._estimates.ratio(e) <= limit]
            if not near or (count >= processes and (len(near) == 1 or not self._is_wide())):
                break
            self._timer.time([], again=near)

    def _is_wide(self) -> bool:
        gain = self._gain()
        return gain is not None and gain.high > _WIDE * gain.low

    def found(self) -> dict[str, Any]:
        """What all timings say: `latency_us`, `baselines`, `speedup_over_best_single` and its interval.

        With `against` also whether its plan is the same, its latency, and its time over ours.
        """
        ours, other, gain = self._ours, self._other, self._gain()
        return {
            "latency_us": ours.latency_us if ours.timed else None,
            "infeasible": ours.failure,
            "max_relative_error": ours.error,
            "partitions": len(ours.plan.partitions),
            "baselines": [self._baseline(text) for text in self._targets],
            "speedup_over_best_single": None if gain is None else gain.ratio,
            "speedup_interval": None if gain is None else [gain.low, gain.high],
            "warnings": list(self._timer.warnings()),
            **({} if other is None else {"against": _compared(ours, other, self._estimates)}),
        }

    def _baseline(self, text: str) -> dict[str, Any]:
        entry = self._singles.get(text)
        if entry is None or not entry.timed:
            return {"target": text, "infeasible": _REWRITTEN if entry is None else entry.failure}
        us = entry.latency_us
        if self._ours.timed:
            us, *_ = self._estimates.latency_us(entry, self._ours)
        return {"target": text, "latency_us": us, "max_relative_error": entry.error}

    def _gain(self) -> Ratio | None:
        """Speedup over the best single target within the tolerance; None where it is not known."""
        allowed = [e for e in self._singles.values() if e.timed and (e.error or 0.0) <= self._tolerance]
        if not allowed or not self._ours.timed:
            return None
        return self._estimates.between(choose(allowed, self._estimates), self._ours)

    @property
    def _estimates(self) -> Estimates:
        return self._timer.standings.estimates


def _normalized(source: Path, stored: ArtifactPlan, work_dir: Path) -> Model:
    """The model that was tuned, in the form that it was tuned in."""
    specs = [stored.model.index.values[name] for name in stored.model.index.inputs]
    dims = {f"{s.name}:{axis}": size for s in specs for axis, size in enumerate(s.static_shape)}
    model, _ = ingest(source, work_dir, dims, least_opset=stored.model.ir.opset_imports.get("", 0))
    return model


def _plan_for(model: Model, against: Path) -> Plan:
    """Another artifact's plan, for this model.

    Raises:
        BadInputError: it is for another model.
    """
    return decode_plan(model, read_plan(against).metadata[PLAN_KEY]).plan


def _compared(ours: TimedPlan, other: TimedPlan, estimates: Estimates) -> dict[str, Any]:
    found: dict[str, Any] = {"same_plan": identity(ours.plan) == identity(other.plan)}
    if not ours.timed or not other.timed:
        return {**found, "infeasible": other.failure or ours.failure}
    ratio = estimates.between(other, ours)
    return {
        **found,
        "latency_us": ours.latency_us * ratio.ratio,
        "ratio": ratio.ratio,
        "interval": [ratio.low, ratio.high],
    }

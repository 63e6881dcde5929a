"""The whole way: a model and targets in, the fastest measured plan out, with the evidence.

Each stage consumes the frozen value of the stage before: ingest → candidates → costs and search, in
turns → end-to-end timing and refinement → emit → proof by loading. Progress is told as events; the
cancel event is looked at between measurements, and stops the child of one that is running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from backends.policy import default_threads
from backends.reference import seeded_inputs
from backends.registry import target_spec
from backends.samples import write_samples
from collage.artifact import write_artifact
from collage.budget import BudgetSearch, choose_targets
from collage.costs import CostSettings, CostSource, Measurer, local_measurer
from collage.end_to_end import Contest
from collage.events import Event, Listener, ignore
from collage.evidence import verify_plan, versions_of
from collage.finals import Finals
from collage.intake import Reference, Sample, read_samples, take_in
from collage.lazy_search import LazySearch
from collage.local_search import LocalSettings
from collage.options import TuneOptions
from collage.refine import Arena, Entry
from collage.region_files import RegionFiles
from collage.report import Findings, build_report
from collage.strategies import check_covered, given_plan, parse_targets, pinned_plan, respects
from collage.whole_models import WholeModels
from collage.why import Witness, whole_model_failures
from cost_db.database import CostDatabase
from partitioner.constraints import Constraints
from partitioner.errors import CancelledError
from partitioner.search import Solution
from partitioner.target import Target
from partitioner.target_spec import enumerate_candidates
from partitioner.transition import Transitions

# Without --time-limit, looking for better plans ends with either of these; see docs/tune.md.
_DEFAULT_TIME_LIMIT_S = 150.0
_MOST_REGIONS = 40
_MOST_LOCAL_S, _LOCAL_SHARE = 20.0, 0.2  # kept for small changes of the best plan
_SEEDS = 2
# What a call and a border between partitions cost before anything is learnt; see docs/measurement.md.
_CALL_US = 5.0
_BORDER_US = 20.0
# With a budget a partition may be this far off on its own outputs; the model's outputs decide.
_LOCAL_ERROR = 0.5
_PROPOSALS = 2
# Up to this tolerance a run asks for exact arithmetic, and each partition alone must keep to it.
_EXACT_TOLERANCE = 2e-3


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run leaves.

    Args:
        artifact_path: the partitioned model.
        report: the report as JSON-ready data.
        plan: the plan alone, as `TuneOptions.plan` takes it.
    """

    artifact_path: Path
    report: dict[str, Any]
    plan: dict[str, Any]


def tune_file(
    source: Path,
    targets: Sequence[str],
    options: TuneOptions,
    *,
    database: CostDatabase,
    work_dir: Path,
    on_event: Listener = ignore,
    cancel: threading.Event | None = None,
    inputs: Path | None = None,
    artifact_name: str = "model.collage.onnx",
    measurer: Measurer = local_measurer,
) -> TuneResult:
    """Tune a model.

    Args:
        source: an ONNX file, or a zip with an ONNX file and its external data.
        targets: texts of targets, at least one.
        options: what the caller chose.
        database: where costs are looked up and stored.
        work_dir: an empty folder for files of this run; the artifact is left in it.
        on_event: told about every step.
        cancel: stops the run when set.
        inputs: sample inputs as an .npz file (see `collage.intake.read_samples`).
        artifact_name: file name of the artifact; large weights beside it are named after it.
        measurer: measures one candidate; the default does so on this machine.

    Raises:
        BadInputError: the model, a target or an option cannot be used.
        NoPlanError: no target takes some node, or no plan runs.
        CancelledError: `cancel` was set.
    """
    run = _Run(
        source,
        parse_targets(targets),
        options,
        database,
        work_dir,
        on_event,
        cancel,
        inputs,
        artifact_name,
        measurer,
    )
    return run.go()


@dataclass
class _Run:
    """One tuning run; its methods are the stages in their order."""

    source: Path
    targets: tuple[Target, ...]
    options: TuneOptions
    database: CostDatabase
    work_dir: Path
    listener: Listener
    cancel: threading.Event | None
    inputs: Path | None
    artifact_name: str
    measurer: Measurer
    seconds: dict[str, float] = field(default_factory=dict)

    def go(self) -> TuneResult:
        begin = time.monotonic()
        limit_s = self.options.time_limit_s or _DEFAULT_TIME_LIMIT_S
        self.deadline_s = begin + limit_s
        self._local_s = min(_MOST_LOCAL_S, _LOCAL_SHARE * limit_s)
        with self._stage("ingest", "reading the model"):
            self.model, self.info = take_in(self.source, self.work_dir, self.options.dims, self.cancel)
        with self._stage("candidates", "enumerating candidates"):
            self.specs = tuple(target_spec(target) for target in self.targets)
            self.candidates = enumerate_candidates(self.model, self.specs)
            check_covered(self.model.index, self.candidates, self.targets)
            self.constraints = self._constraints()
            domains = {spec.target: spec.memory_domain for spec in self.specs}
            self.constraints.check(self.model.index, self.targets, self.candidates.refusals, domains)
        self._prepare()
        with self._stage("measure", f"measuring among {len(self.candidates.candidates)} candidates"):
            self.whole = WholeModels(self.model.index, self.targets, self.costs)
            self.estimates = self.whole.measure(self.candidates, lambda: self._out_of_time)
            self._spend_budget()
            solution = self._search()
        with self._stage("end_to_end", "timing whole plans in turn"):
            winner = self._finals(solution)
        self.seconds["reference"] = self.reference.seconds
        self.seconds["end_to_end"] = self.arena.seconds
        self.seconds["total"] = time.monotonic() - begin
        with self._stage("emit", "writing the artifact"):
            return self._emit(winner, solution)

    def _prepare(self) -> None:
        self.seeds = tuple(self.options.seed + i for i in range(_SEEDS))
        seeded = [seeded_inputs(self.info.inputs, seed) for seed in self.seeds]
        self.seeded_reference = self._reference_of(seeded, "seeded")
        self.reference = self.seeded_reference
        held_out: list[Sample] = []
        if self.inputs is not None:
            given = read_samples(self.inputs, self.info.inputs)
            middle = (len(given) + 1) // 2
            self.reference = self._reference_of(given[:middle], "given")
            held_out = list(given[middle:])
        elif self._has_budget:
            more = range(self.options.seed + _SEEDS, self.options.seed + 2 * _SEEDS)
            held_out = [seeded_inputs(self.info.inputs, seed) for seed in more]
        self.held_out = self._reference_of(held_out, "held-out", keep_all=False) if held_out else None
        self.regions = RegionFiles(self.model, self.work_dir / "regions")
        threads = self.options.threads or default_threads()
        tolerance = self.options.tolerance
        self.costs = CostSource(
            self.model,
            self.regions,
            self.reference,
            self.database,
            CostSettings(
                threads,
                _LOCAL_ERROR if self._has_budget else tolerance,
                tolerance,
                cache_dir=self._cache_dir,
            ),
            self.measurer,
            self.listener,
            self.cancel,
        )

    @property
    def _cache_dir(self) -> Path:
        """Conversions are slow and the same each time, so this run makes each once."""
        folder = self.work_dir / "compiled"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def _has_budget(self) -> bool:
        """True when the tolerance is more than what exact arithmetic needs."""
        return self.options.tolerance > _EXACT_TOLERANCE or self.options.metric != "max"

    def _reference_of(self, samples: Sequence[Sample], name: str, keep_all: bool = True) -> Reference:
        folder = self.work_dir / name
        return Reference(self.model, samples, folder, self.listener, self.cancel, keep_all)

    @property
    def _made_outputs(self) -> list[str]:
        """Graph outputs that nodes make; the others are inputs or constants passed through."""
        return [name for name in self.model.index.outputs if name in self.model.index.producer]

    def _constraints(self) -> Constraints:
        return Constraints.parse(
            pins=self.options.pins,
            bans=self.options.bans,
            max_partitions=self.options.max_partitions,
            max_devices=self.options.max_devices,
            min_partition_nodes=self.options.min_partition_nodes,
        )

    def _search(self) -> Solution | None:
        """The best plans by measured costs; None where the strategy needs no search."""
        if self.options.strategy != "optimal" or self.options.plan is not None:
            return None
        self.lazy = LazySearch(
            self.model.index,
            self.candidates,
            self.costs,
            self.estimates,
            self._transitions(),
            self.constraints,
            self.deadline_s - self._local_s,
            self.listener,
            _MOST_REGIONS if self.options.time_limit_s is None else None,
        )
        incumbent_us = min(self.whole.latencies_us().values(), default=float("inf"))
        return self.lazy.run(self.options.plans, incumbent_us)

    def _spend_budget(self) -> None:
        """Find out which blocks may be less exact, as plans and as a constraint of the search."""
        self.proposed: list[Entry] = []
        if not self._has_budget or self.options.strategy != "optimal":
            return
        exact, reduced = choose_targets(self.whole.rows(), self.estimates, _EXACT_TOLERANCE)
        if not exact:
            return
        used = len(self.reference.samples)
        budget = BudgetSearch(
            self.model.index, self.regions, self._template(), used, self.listener, self.cancel
        )
        tolerance = self.options.tolerance
        for target in reduced:
            times = {t: self.estimates.times_us(t) or {} for t in (exact[0], target)}
            for entries in budget.propose(exact[0], target, times, [tolerance, tolerance / 2]):
                self.proposed.extend(entries[:_PROPOSALS])
        row = budget.constraint(self.candidates.candidates, exact, tolerance)
        self.constraints = replace(self.constraints, budgets=(row,))

    def _finals(self, solution: Solution | None) -> Entry:
        eligible = partial(respects, self.model.index, self.constraints, self.specs)
        self.arena = Arena(self.regions, self._template(), self.listener, self.cancel, eligible)
        unlimited = replace(self.constraints, budgets=())
        moves = LocalSettings(seconds=self._local_s, seed=self.options.seed)
        finals = Finals(self.model, self.specs, unlimited, self.arena, self.whole.latencies_us(), moves)
        strategy = self.options.strategy
        if self.options.plan is not None:
            return finals.asked_for(given_plan(self.model, self.options.plan))
        if strategy == "manual":
            return finals.asked_for(pinned_plan(self.model, self.candidates, self.constraints))
        if strategy == "greedy":
            return finals.asked_for(finals.greedy_entry())
        if strategy == "priority":
            return finals.asked_for(finals.priority_entry())
        if strategy == "single" or solution is None:
            return finals.best_single()
        return finals.refined(self.lazy, solution, self.options.plans, self.proposed)

    def _transitions(self) -> Transitions:
        known = Transitions.for_specs(self.specs)
        borders = dict.fromkeys(self.targets, _BORDER_US)
        return replace(known, default_call_us=_CALL_US, border_us=borders)

    def _template(self) -> Contest:
        """A contest without plans: samples and reference outputs as files."""
        folder = self.work_dir / "contest"
        folder.mkdir(parents=True, exist_ok=True)
        samples, expected = folder / "samples.npz", folder / "expected.npz"
        references = [self.reference] if self.held_out is None else [self.reference, self.held_out]
        write_samples(samples, [sample for known in references for sample in known.samples])
        values = [value for known in references for value in known.values(self._made_outputs)]
        write_samples(expected, values)
        return Contest(
            plans=(),
            regions={},
            inputs=self.info.inputs,
            outputs=tuple(self._made_outputs),
            samples_file=samples,
            expected_file=expected,
            metric=self.options.metric,
            error_limit=self.options.tolerance,
            threads=self.options.threads or default_threads(),
            cache_dir=self._cache_dir,
        )

    @property
    def _out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline_s

    def _emit(self, winner: Entry, solution: Solution | None) -> TuneResult:
        report = self._report(winner, solution)
        threads = self.options.threads or default_threads()
        verification = verify_plan(
            winner.plan,
            self.regions,
            self.seeded_reference,
            self.seeds,
            self.options.tolerance,
            threads,
            self.cancel,
        )
        artifact = write_artifact(
            self.model,
            winner.plan,
            [part["latency_us"] for part in report["partitions"]],
            report,
            verification,
            versions_of(winner.plan),
            self.work_dir / "artifact" / self.artifact_name,
        )
        self.listener(Event("done", f"{winner.name} wins", data={"report": report}))
        return TuneResult(artifact.path, report, dict(artifact.plan))

    def _report(self, winner: Entry, solution: Solution | None) -> dict[str, Any]:
        known = (self.model.index, self.targets, self.candidates, self.costs, self.estimates)
        witness = Witness(*known, self._transitions())
        warnings = [*self.info.warnings, *self.candidates.notes]
        if self.inputs is None and self.options.tolerance > _EXACT_TOLERANCE:
            warnings.append(
                "errors were measured on seeded inputs; give real ones with --inputs to sample what the "
                "model was trained for"
            )
        return build_report(
            Findings(
                model_sha256=self.model.sha256,
                index=self.model.index,
                targets=self.targets,
                winner=winner,
                entries=self.arena.entries,
                infeasible=whole_model_failures(witness),
                candidates=self.candidates,
                unique=self.costs.unique(self.candidates.candidates),
                counts=self.costs.counts,
                solution=solution,
                seconds=self.seconds,
                tolerance=self.options.tolerance,
                metric=self.options.metric,
                sampled="seeded" if self.inputs is None else "given",
                warnings=warnings,
                witness=witness,
            )
        )

    @contextmanager
    def _stage(self, name: str, message: str) -> Iterator[None]:
        if self.cancel is not None and self.cancel.is_set():
            raise CancelledError(f"cancelled before the stage {name}")
        self.listener(Event(name, message))
        begin = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin

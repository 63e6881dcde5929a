"""The whole way: a model and targets in, the fastest measured plan out, with the evidence.

Each stage consumes the frozen value of the stage before: ingest → candidates → costs and search, in
turns → end-to-end timing and refinement → emit → proof by loading. Progress is told as events; the
cancel event is looked at between measurements, and stops the child of one that is running.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from collage.accuracy.budget_search import BudgetSearch
from collage.accuracy.error_limits import ErrorLimits
from collage.accuracy.evaluation import Check, Evaluation
from collage.accuracy.target_choice import choose_targets
from collage.artifact.emit import TuneResult, emit
from collage.backends.registry import target_spec
from collage.cost_db.database import CostDatabase
from collage.cost_db.tunings import TuningRecord
from collage.costs.copy_costs import copy_costs
from collage.costs.measured_costs import CostSettings, MeasuredCosts
from collage.costs.measurement_context import protocol_for, transitions_between
from collage.disk_space import DiskBudget
from collage.events import Event, Listener, ignore
from collage.model.preparation import calibrates, least_opset
from collage.model.reference import ingest
from collage.model.sampling import Sampling, about_seeded_inputs
from collage.model.self_error import allow_own_error
from collage.model.sub_models import RegionFiles
from collage.options import TuneOptions, chosen_targets
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.plan_json import decode
from collage.partitioner.errors import BadInputError, CancelledError, NoPlanError
from collage.partitioner.graph.weights import total_bytes
from collage.partitioner.rules.target_spec import enumerate_candidates
from collage.partitioner.search.search import Solution
from collage.partitioner.target import Target
from collage.refinement import optuna_study
from collage.refinement.local_search import LocalSettings
from collage.refinement.refinement import Refinement
from collage.refinement.target_variants import single_variants, worth_mixing
from collage.report.alternatives import Witness, whole_model_failures
from collage.report.pareto import front
from collage.report.report import Findings, build_report
from collage.runner import Runner
from collage.search.fixed_plans import (
    check_covered,
    given_plan,
    parse_targets,
    pinned_plan,
    respects,
    single_plan,
)
from collage.search.lazy_search import LazySearch
from collage.search.single_targets import SingleTargets, may_take_all
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import without_plans
from collage.timing.timed_plan import TimedPlan
from collage.tuning.tuning_cache import TuningCache, report_again

_MOST_LOCAL_S, _LOCAL_SHARE = 20.0, 0.2  # kept for small changes of the best plan
_PROBING_SHARE = 0.15  # the most for blocks of targets without a profile
# A winner is confirmed at length for so long, or for as long as the limit, after the time is up.
_LEAST_PATIENCE_S = 10.0


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
    runner: Runner | None = None,
    check: Check | None = None,
) -> TuneResult:
    """Tune a model.

    Args:
        source: an ONNX file, or a zip with an ONNX file and its external data.
        targets: texts of targets; none where those of the plan in `options` are meant.
        options: what the caller chose.
        database: where costs are looked up and stored.
        work_dir: an empty folder for files of this run; the artifact is left in it.
        on_event: told about every step.
        cancel: stops the run when set.
        inputs: sample inputs as an .npz file (see `collage.model.reference.read_samples`).
        artifact_name: file name of the artifact; large weights beside it are named after it.
        runner: where runtimes run; by default on this machine.
        check: the caller's own check of the plan that is returned.

    Raises:
        BadInputError: the model, a target or an option cannot be used.
        NoPlanError: no target takes some node, or no plan runs.
        CancelledError: `cancel` was set.
    """
    given = (source, parse_targets(chosen_targets(targets, options.plan)), options, database, work_dir)
    return _Run(*given, on_event, cancel, inputs, artifact_name, runner or Runner(), check).go()


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
    runner: Runner
    check: Check | None
    seconds: dict[str, float] = field(default_factory=dict)
    blocks: Sequence[Candidate] = ()

    def go(self) -> TuneResult:
        self.begin_s = time.monotonic()
        self.facts = self.runner.check(self.targets)
        threads = self.options.threads or self.runner.threads
        self.options = self.options.model_copy(update={"threads": threads})
        self.error_limits = ErrorLimits.of(self.options, self.check is not None)
        with self._stage("ingest", "reading the model"):
            self.model, self.info = ingest(
                self.source, self.work_dir, self.options.dims, self.cancel, least_opset(self.facts)
            )
        self.limit_s = self.options.limit_s(total_bytes(self.model.ir.graph.initializers.values()))
        self.deadline_s = self.begin_s + self.limit_s
        self._local_s = min(_MOST_LOCAL_S, _LOCAL_SHARE * self.limit_s)
        with self._stage("candidates", "enumerating candidates"):
            self.specs = tuple(target_spec(target) for target in self.targets)
            self.candidates = enumerate_candidates(self.model, self.specs)
            check_covered(self.model.index, self.candidates, self.targets)
            self.constraints = self.options.constraints()
            domains = {spec.target: spec.memory_domain for spec in self.specs}
            self.constraints.check(self.model.index, self.targets, self.candidates.refusals, domains)
            self._respects = partial(respects, self.model.index, self.constraints, self.specs)
        self._prepare()
        if self.memory is None or self.options.fresh:
            return self._found()
        begin_s = time.monotonic()
        with self.memory.turn(self.limit_s, self.cancel) as record:
            self.deadline_s += time.monotonic() - begin_s  # waiting for others is no searching
            return (self._known(record) if record else None) or self._found()

    def _found(self) -> TuneResult:
        """Measure, search, and write what wins."""
        known = (self.samples.compared, self.options, self.work_dir / "own-error")
        self.options, self.notes = allow_own_error(*known, self.listener, self.cancel)
        self.samples.options, self.error_limits = (
            self.options,
            ErrorLimits.of(self.options, self.check is not None),
        )
        self.costs.limit_errors(self.error_limits.local_limit, self.error_limits.whole_limit)
        self.copies = copy_costs(self.specs, self.samples.threads, self.runner.run)
        self.transitions = transitions_between(self.specs, self.copies)
        with self._stage("measure", f"measuring among {len(self.candidates.candidates)} candidates"):
            probing_s = _PROBING_SHARE * self.limit_s
            self.whole = SingleTargets(self.model.index, self.targets, self.costs, probing_s)
            hopeful = may_take_all(self.model.index, self.specs, self.candidates)
            self.estimates = self.whole.measure(
                self.candidates, lambda: self._out_of_time, hopeful, may_win=self._respects
            )
            proposed = self._spend_budget()
            if self._searches and not self._out_of_time:
                proposed += single_variants(
                    model=self.model,
                    targets=self.whole.fastest_first(),
                    threads=self.samples.threads,
                    latencies_us=self.whole.latencies_us(),
                    listener=self.listener,
                    cancel=self.cancel,
                )
        self._open_finals()
        if proposed or (self._searches and not self._out_of_time):
            with self._stage("end_to_end", "timing the single targets in turn"):
                self.finals.open(proposed, self.budget.correct if self.budget else lambda entries: ())
                self._admit(worth_mixing(self.timer.entries, self.targets))
                self.whole.correct(self.finals.singles_us(), self.estimates)
                exact_us = self.whole.within(self.error_limits.exact_limit)
                self.blocks = self.finals.lay_out(self.candidates, self.estimates, exact_us)
        solution = self._search()
        with self._stage("end_to_end", "timing whole plans in turn"):
            try:
                winner = self._winner(solution)
            except NoPlanError as error:
                raise NoPlanError(f"{error}{self.samples.beyond_comparing()}") from None
        if self.check is not None:
            with self._stage("evaluate", "evaluating plans, the fastest first"):
                winner = Evaluation(self.check, self.timer, self.regions, self.samples).passing(winner)
        self.seconds["reference"] = self.samples.chosen_by.seconds
        self.seconds["end_to_end"] = self.timer.seconds
        self.seconds["total"] = time.monotonic() - self.begin_s
        with self._stage("emit", "writing the artifact"):
            report = self._report(winner, solution)
            result = self._emit(winner.plan, report, f"{winner.name} wins")
        if self.memory is not None:
            self.memory.keep(winner.plan, report, self.limit_s)
        return result

    def _admit(self, rewritten: Sequence[Target]) -> None:
        """Let the search use what is faster with the model rewritten, as targets of their own."""
        if not rewritten or self.budget is not None or self._out_of_time:
            return
        self.specs = (*self.specs, *map(target_spec, rewritten))
        self.candidates = enumerate_candidates(self.model, self.specs)
        self.transitions = transitions_between(self.specs, self.copies)
        self.whole = self.whole.joined_by(rewritten)
        self.estimates = self.whole.measure(self.candidates, lambda: self._out_of_time)
        self.finals.admit(self.specs, self.whole.latencies_us())

    def _prepare(self) -> None:
        given = (self.model, self.info, self.options, self.work_dir, self.inputs)
        self.samples = Sampling(*given, self.error_limits.has_budget, self.listener, self.cancel)
        values = self.samples.chosen_by.values if calibrates(self.facts) else None
        room = DiskBudget.for_model(self.model.path, self.samples.cache_dir)
        self.regions = RegionFiles(self.model, self.work_dir / "regions", values, room=room)
        settings = CostSettings(
            self.samples.threads,
            protocol=protocol_for(self.model, self.runner.hardware),
            cache_dir=self.samples.cache_dir,
        )
        self.costs = MeasuredCosts(
            self.model,
            self.regions,
            self.samples.chosen_by,
            self.database,
            settings,
            self.runner,
            self.listener,
            self.cancel,
        )
        # What takes no search is timed each time it is asked for; a caller's own check is code, which may change.
        self.memory: TuningCache | None = None
        if self._searches and self.check is None:
            sought = (self.model, self.targets, self.candidates.candidates, self.costs, self.options)
            self.memory = TuningCache(self.database, *sought, self.inputs, self.listener)

    def _search(self) -> Solution | None:
        """The best plans by measured costs; None where the strategy needs no search."""
        if not self._searches:
            return None
        constraints = self.constraints
        if self.budget is not None:
            spent = self.budget.constraint(self.candidates.candidates, self.options.tolerance)
            constraints = replace(constraints, budgets=(spent,))
        self.lazy = LazySearch(
            self.model.index,
            self.candidates,
            self.costs,
            self.estimates,
            self.transitions,
            constraints,
            self.deadline_s - self._local_s,
            self.listener,
            self.options.most_regions,
            self.blocks,
        )
        self.lazy.corrections = self.finals.known_us()
        if self.budget is None:
            self.finals.explore(self.lazy)
        # What a pin or a limit forbids is no plan to stop at.
        exact = self.whole.within(self.error_limits.exact_limit).items()
        allowed = [us for t, us in exact if self.timer.allows(single_plan(self.model, t))]
        incumbent_us = min(allowed, default=float("inf")) * self.finals.lead()
        with self._stage("measure", "searching"):
            return self.lazy.run(self.options.plans, incumbent_us)

    def _spend_budget(self) -> list[TimedPlan]:
        """Find out which blocks may be less exact, as plans and as a constraint of the search."""
        self.budget: BudgetSearch | None = None
        if not self.error_limits.has_budget or not self._searches:
            return []
        # What whole models err is known in this metric only.
        goal = max(self.error_limits.tolerances) if self.options.metric == "max" else math.inf
        chosen = choose_targets(self.whole.rows(), self.estimates, goal)
        for reason in chosen.refused:
            self.listener(Event("accuracy", f"not mixed in: {reason}"))
        if not chosen.reduced:
            return []
        self.budget = BudgetSearch(
            self.model,
            without_plans(self.samples),
            len(self.samples.chosen_by.samples),
            chosen,
            self.estimates,
            self.listener,
            self.runner,
            self.cancel,
            (self.deadline_s - self.limit_s, self.deadline_s),
        )
        return self.budget.propose(self.error_limits.tolerances)

    def _open_finals(self) -> None:
        self.timer: PlanTimer = PlanTimer(
            self.regions,
            without_plans(
                self.samples, self.error_limits.error_limit, prune=not self.error_limits.slower_too
            ),
            self.listener,
            self.cancel,
            self._respects,
            self.options.tolerance,
            self.runner,
            self.deadline_s,
        )
        keep = partial(optuna_study.keep, self.database.connections, self.model.sha256, self.listener)
        moves = LocalSettings(seconds=self._local_s, seed=self.options.seed, keep=keep)
        known = (self.model, self.specs, self.constraints, self.timer, self.whole.latencies_us())
        self.finals: Refinement = Refinement(*known, moves, max(_LEAST_PATIENCE_S, self.limit_s))

    def _winner(self, solution: Solution | None) -> TimedPlan:
        finals, strategy = self.finals, self.options.strategy
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
        return finals.refined(self.lazy, solution, self.options.plans)

    @property
    def _searches(self) -> bool:
        return self.options.strategy == "optimal" and self.options.plan is None

    @property
    def _out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline_s

    def _known(self, record: TuningRecord) -> TuneResult | None:
        """What the same search found before; None where its plan fails now."""
        self.seconds["total"] = time.monotonic() - self.begin_s
        report = report_again(record, self.seconds)
        # Where a model rounds, its own error was allowed.
        self.samples.options = self.options.model_copy(update={"tolerance": report["tolerance"]})
        try:
            with self._stage("emit", f"known since {report['known_since']}; writing the artifact"):
                plan = decode(self.model, record.plan).plan
                return self._emit(plan, report, "the plan was known")
        except (NoPlanError, BadInputError) as error:
            self.listener(Event("emit", f"the known plan fails, so it is searched anew: {error}"))
            return None

    def _emit(self, plan: Plan, report: dict[str, Any], said: str) -> TuneResult:
        destination = self.work_dir / "artifact" / self.artifact_name
        artifact = emit(plan, report, destination, self.regions, self.samples, self.runner, self.cancel)
        self.listener(Event("done", said, data={"report": report}))
        return TuneResult(artifact.path, report, dict(artifact.plan))

    def _report(self, winner: TimedPlan, solution: Solution | None) -> dict[str, Any]:
        targets = [spec.target for spec in self.specs]
        known = (self.model.index, targets, self.candidates, self.costs, self.estimates)
        witness = Witness(*known, self.transitions)
        warnings = [*self.info.warnings, *self.notes, *self.candidates.notes, *self.whole.untried()]
        warnings += [*self.samples.about_outputs(), *self.timer.warnings()]
        if self.inputs is None:
            warnings += about_seeded_inputs(self.error_limits.has_budget, calibrates(self.facts))
        return build_report(
            Findings(
                model_sha256=self.model.sha256,
                index=self.model.index,
                targets=self.targets,
                winner=winner,
                entries=self.timer.entries,
                infeasible=whole_model_failures(witness),
                candidates=self.candidates,
                unique=self.costs.unique(self.candidates.candidates),
                counts=self.costs.counts,
                solution=solution,
                seconds=self.seconds,
                tolerance=self.options.tolerance,
                metric=self.options.metric,
                front=front(self.model, self.timer.entries, winner) if self.options.pareto else None,
                sampled="seeded" if self.inputs is None else "given",
                warnings=warnings,
                witness=witness,
                runner=self.runner,
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

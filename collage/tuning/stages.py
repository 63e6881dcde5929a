"""The values that a tuning run goes through, in their order.

Each stage is a function from one value to the next. A value holds all that the one before it holds, and what its stage
found; so the last one has everything that the report says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collage.accuracy.budget_search import BudgetSearch
from collage.accuracy.error_limits import ErrorLimits
from collage.accuracy.evaluation import Evaluation
from collage.accuracy.target_choice import exact_limit
from collage.accuracy.task import Task, TaskProof
from collage.costs.estimates import Estimates
from collage.costs.measured_costs import MeasuredCosts
from collage.deadline import Deadline
from collage.learning.advice import Advice
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Instances, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.search import Solution
from collage.partitioner.search.transition import CopyCost, Transitions
from collage.partitioner.target import Target
from collage.refinement.comparisons import Comparisons
from collage.runner import TargetFacts
from collage.search.corrections import Corrections
from collage.search.fixed_plans import respects
from collage.search.lazy_search import LazySearch
from collage.search.single_targets import SingleTargets
from collage.timing.plan_timer import PlanTimer
from collage.timing.timed_plan import TimedPlan
from collage.tuning.run import Run, TuneRequest


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """The model was read.

    Args:
        run: what every stage runs with.
        request: what the caller asked for, the number of threads filled in.
        facts: of each target.
        model: the normalized model.
        info: its inputs.
        limit_s: seconds after which no better plan is looked for.
        sampled: its inputs with reference values, where these are known already.
    """

    run: Run
    request: TuneRequest
    facts: Sequence[TargetFacts]
    model: Model
    info: NormalizedInfo
    limit_s: float
    sampled: Sampling | None = None


@dataclass(frozen=True, kw_only=True)
class Proposed(Ingested):
    """Candidates were proposed.

    Args:
        specs: the targets, those included that joined later.
        candidates: all that may be offered to them.
        constraints: what plans must keep to.
    """

    specs: tuple[TargetSpec, ...]
    candidates: CandidateSet
    constraints: Constraints

    def keeps(self, plan: Plan) -> bool:
        """True when a plan keeps what the caller asked for."""
        return respects(self.model.index, self.constraints, self.specs, plan)


@dataclass(frozen=True, kw_only=True)
class Prepared(Proposed):
    """Samples and sub-models are at hand, and costs can be looked up.

    Args:
        sampling: the inputs of the run.
        sub_models: files of partitions.
        costs: what is known of candidates, and how to measure them.
        task: the metric that bounds plans, with its samples; None where there is none.
    """

    sampling: Sampling
    sub_models: RegionFiles
    costs: MeasuredCosts
    task: Task | None


@dataclass(frozen=True, kw_only=True)
class Allowed(Prepared):
    """It is known what errors are allowed, and until when plans are looked for.

    Args:
        tolerance: bound on the error of every output: the caller's, or the model's own error.
        error_limits: what follows from it.
        notes: what the report says of it.
        copies: what it costs to bring values from one memory into another.
        deadline: until when plans are looked for, compared, and confirmed.
        objective_end_s: until when settings are measured for another objective than latency, as the clock tells.
    """

    tolerance: float
    error_limits: ErrorLimits
    notes: Sequence[str]
    copies: Mapping[tuple[str, str], CopyCost]
    deadline: Deadline
    objective_end_s: float

    @property
    def out_of_time(self) -> bool:
        """True when nothing new is to be looked for."""
        return self.deadline.has_passed


@dataclass(frozen=True, kw_only=True)
class Baselines(Allowed):
    """The whole model was measured on each target.

    Args:
        advice: what other models say of this one.
        left_out: targets that need not run the whole model, and why; nothing below knows them.
        single_targets: the measurements.
        estimates: of what each node takes on each target.
        transitions: what borders cost.
        plan_s: seconds that one plan of a comparison is expected to take.
        emit_s: seconds that writing the artifact is expected to take.
    """

    advice: Advice
    left_out: Mapping[Target, str]
    single_targets: SingleTargets
    estimates: Estimates
    transitions: Transitions
    plan_s: float
    emit_s: float

    def exact_us(self, latencies_us: Mapping[Target, float]) -> dict[Target, float]:
        """Those of some whole models' latencies whose targets compute exactly."""
        return self.single_targets.within(self.exact_error, latencies_us)

    @property
    def exact_error(self) -> float:
        """The error of the whole model up to which targets compute exactly."""
        limit = self.error_limits.exact_limit
        return limit if self.task is None else max(limit, self.fp32_error)

    @property
    def fp32_error(self) -> float:
        """The same, whatever error the caller allows."""
        rows = self.single_targets.rows().values()
        return exact_limit(r.error or 0.0 for r in rows if r and r.latency_us is not None)


@dataclass(frozen=True, kw_only=True)
class Budgeted(Baselines):
    """It was tried which parts may be less exact.

    Args:
        budget: finds mixes within the tolerance; None where there is no room for any.
        proposed: plans to time before the search.
        keeping: the target whose whole model keeps the task on the searched samples, or needs not; no mixes are proposed
            yet, since it may leave them nothing to gain. None where there is no such target.
        too_far: targets whose whole models do not keep the task on the searched samples, as far as they were asked.
    """

    budget: BudgetSearch | None
    proposed: Sequence[TimedPlan]
    keeping: Target | None = None
    too_far: frozenset[Target] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Timed(Budgeted):
    """Baselines ran in turn; from here on `specs` and `candidates` include the variants that joined.

    Args:
        timer: where whole plans are timed.
        comparisons: of whole plans.
        corrections: what these say of costs.
        blocks: of each target, to be looked at whatever profiles say of them.
        promised: what the best target for each part would save; None where that is not known.
        wholes: the whole models that ran.
        ended_early: why no plans are searched; None where they are.
        proof: has judged plans on the samples that prove; None where none was judged yet.
        proven: the plan that it let pass.
    """

    timer: PlanTimer
    comparisons: Comparisons
    corrections: Corrections
    blocks: Sequence[Candidate]
    promised: float | None = None
    wholes: Sequence[TimedPlan] = ()
    ended_early: str | None = None
    proof: TaskProof | None = None
    proven: TimedPlan | None = None


@dataclass(frozen=True, kw_only=True)
class Searched(Timed):
    """Plans were searched.

    Args:
        lazy: the search; None where the strategy needs none.
        solution: what it found.
    """

    lazy: LazySearch | None = None
    solution: Solution | None = None


@dataclass(frozen=True)
class Form:
    """The model with so many rows as a plan is measured and written with: its samples and its sub-models."""

    sampling: Sampling
    sub_models: RegionFiles


@dataclass(frozen=True, kw_only=True)
class Refined(Searched):
    """The plan to return is known.

    Args:
        winner: the plan, as it was timed.
        judge: says of any plan whether it may be returned; None where nobody asks.
        evaluation: how well it does its task, for the report; None where no metric was asked for.
        doubts: what is not sure about that.
        instances: how many requests at once it was tuned for; None for one on all threads.
        objective: what was tuned for, as the report has it.
        form: the model with more rows, where calls of the plan compute several requests.
    """

    winner: TimedPlan
    judge: Evaluation | None = None
    evaluation: Mapping[str, Any] | None = None
    doubts: Sequence[str] = ()
    instances: Instances | None = None
    objective: Mapping[str, Any] | None = None
    form: Form | None = None

    @property
    def plan(self) -> Plan:
        """The plan to return, with its instances."""
        return replace(self.winner.plan, instances=self.instances)

    def returning(self, winner: TimedPlan) -> Refined:
        """The same with another plan, which the judge let pass just now."""
        check = None if self.judge is None else self.judge.check
        if not isinstance(check, TaskProof):
            return replace(self, winner=winner)
        return replace(self, winner=winner, evaluation=check.report(), doubts=check.warnings())

    def counted(self) -> Refined:
        """The same; its evaluation counts the plans that the judge has scored since as well."""
        check = None if self.judge is None else self.judge.check
        if not isinstance(check, TaskProof) or self.evaluation is None:
            return self
        return replace(self, evaluation={**self.evaluation, "proof_attempts": check.attempts})

"""The report: what was found, how it was measured, and what it is worth.

Latencies are microseconds of one call, medians over interleaved rounds. A field is null where nothing
is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.costs.measured_costs import Counts
from collage.model.preparation import computed
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.search.search import Solution
from collage.partitioner.target import Target
from collage.report.alternatives import (
    KnownCosts,
    PlacedPartition,
    alone_us,
    alternatives,
    never_measured,
    reasons,
    refused_operators,
    runner_up,
)
from collage.runner import Runner
from collage.timing.estimates import Estimates
from collage.timing.request import NO_TIME, told_failure
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan

REPORT_VERSION = 1


@dataclass(frozen=True)
class Findings:
    """What a tuning run hands to the report; see `build_report`."""

    model_sha256: str  # of the normalized model
    index: GraphIndex
    targets: Sequence[Target]  # as the caller gave them
    winner: TimedPlan  # the plan returned
    standings: Standings  # every plan that was timed or failed, and how fast they are
    infeasible: Mapping[Target, str]  # per target why it cannot run the whole model
    candidates: CandidateSet  # all that could be used
    unique: int | None  # how many different keys they have
    counts: Counts  # how many costs were measured or known
    solution: Solution | None  # of the search; None where the strategy made none
    seconds: Mapping[str, float]  # per stage
    tolerance: float  # bound on the error of every output
    metric: str
    sampled: str  # `given` or `seeded` inputs
    warnings: Sequence[str]  # of ingest and of the run
    known: KnownCosts  # costs of the other targets
    runner: Runner  # where all this was measured
    # points of latency against error; None where none were asked for
    front: Sequence[Mapping[str, Any]] | None = None
    # how well the winner does its task; None where no metric was asked for
    evaluation: Mapping[str, Any] | None = None
    # how well costs were predicted from those of other models; None where nothing was
    learned: Sequence[Mapping[str, Any]] | None = None
    # what was tuned for, and the settings that were measured
    objective: Mapping[str, Any] | None = None

    @property
    def entries(self) -> Sequence[TimedPlan]:
        """Every plan that was timed or failed."""
        return self.standings.entries

    @property
    def estimates(self) -> Estimates:
        """How fast they are."""
        return self.standings.estimates


def build_report(found: Findings) -> dict[str, Any]:
    """The report as JSON-ready data; its fields are described in docs/report.md."""
    winner = found.winner
    # What ran goes before what failed, and a refusal before a lack of time.
    known = sorted(found.entries, key=lambda e: (e.timed, e.failure != NO_TIME))
    singles = {t: e for e in known if (t := single_target(e)) in found.targets}
    timed = [e for e in singles.values() if e.timed and not (e.error or 0.0) > found.tolerance]
    # By the same rule and estimates that chose the winner.
    best = found.standings.best_beside(winner, timed)
    gain = None if best is None else found.estimates.between(best, winner)
    greedy = next((e for e in found.entries if e.name.startswith("greedy") and e.timed), None)
    predicted = winner.predicted_us
    error = None if predicted is None else winner.latency_us - predicted
    return {
        "report_version": REPORT_VERSION,
        "model_sha256": found.model_sha256,
        "targets": [str(target) for target in found.targets],
        "machine": {
            "label": found.runner.hardware.label,
            "hardware": found.runner.hardware.digest,
            "description": found.runner.hardware.describe(),
        },
        "partitions": _partitions(found),
        "transfers": _transfers(found),
        "latency_us": winner.latency_us,
        "latency_interval_us": list(interval_us(winner)),
        "baselines": [_baseline(target, singles.get(target), found) for target in found.targets],
        "greedy_latency_us": None if greedy is None else found.estimates.latency_us(greedy, winner)[0],
        "speedup_over_best_single": None if gain is None else gain.ratio,
        "speedup_interval": None if gain is None else [gain.low, gain.high],
        "predicted_latency_us": predicted,
        "additive_error": error,
        "max_relative_error": winner.error,
        "tolerance": found.tolerance,
        "metric": found.metric,
        "evaluation": None if found.evaluation is None else dict(found.evaluation),
        "sampled_inputs": found.sampled,
        "front": None if found.front is None else list(found.front),
        "objective": None if found.objective is None else dict(found.objective),
        "plans": [_plan(entry, best, found) for entry in found.entries],
        "known_since": None,
        "candidates": {
            "total": len(found.candidates.candidates),
            "unique": found.unique,
            "measured": found.counts.measured,
            "from_cache": found.counts.from_cache,
            "infeasible": found.counts.infeasible,
        },
        "search": _search(found.solution),
        "learned": None if found.learned is None else [dict(each) for each in found.learned],
        "refused": refused_operators(found.known),
        "never_measured": never_measured(found.known),
        "warnings": list(found.warnings),
        "seconds": {stage: round(spent, 3) for stage, spent in found.seconds.items()},
    }


def _search(solution: Solution | None) -> dict[str, Any] | None:
    if solution is None:
        return None
    return {
        "objective_us": solution.plans[0].objective_us,
        "bound_us": solution.bound_us,
        "optimal": solution.optimal,
    }


def single_target(entry: TimedPlan) -> Target | None:
    """The target of a plan that is one partition, else None."""
    partitions = entry.plan.partitions
    return partitions[0].target if len(partitions) == 1 else None


def _partitions(found: Findings) -> list[dict[str, Any]]:
    winner = found.winner
    steps = winner.step_us
    timed = {
        frozenset((p.nodes, p.target) for p in entry.plan.partitions): (
            found.estimates.latency_us(entry, winner)[0] - winner.latency_us
        )
        for entry in found.entries
        if entry.timed and entry is not winner
    }
    parts = []
    for position, partition in enumerate(winner.plan.partitions):
        latency_us = steps[position] if position < len(steps) else None
        place = PlacedPartition(winner.plan, position, latency_us, timed)
        others = alternatives(found.known, place)
        own_us = alone_us(found.known, partition)
        parts.append(
            {
                "target": str(partition.target),
                "nodes": [found.index.nodes[i].name for i in bits(partition.nodes)],
                **computed(found.runner.facts(partition.target)),
                "latency_us": latency_us,
                "predicted_us": own_us,
                "runner_up": runner_up(others),
                "alternatives": others,
                "why": reasons(place, own_us, others),
            }
        )
    return parts


def _transfers(found: Findings) -> list[dict[str, Any]]:
    """The values between partitions of the plan, and how long they take to another memory; in the same one, no time."""
    index, partitions = found.index, found.winner.plan.partitions
    maker = {
        name: position
        for position, partition in enumerate(partitions)
        for node in bits(partition.nodes)
        for name in index.nodes[node].outputs
    }
    told = []
    for reader, partition in enumerate(partitions):
        used = [name for node in bits(partition.nodes) for name in index.nodes[node].used]
        for name in dict.fromkeys(used):
            if maker.get(name, reader) != reader:
                spec = index.values[name]
                told.append(
                    {
                        "value": name,
                        "from": maker[name],
                        "to": reader,
                        "bytes": spec.size_bytes if spec.is_static else None,
                        "latency_us": found.winner.copy_us.get((name, reader), 0.0),
                    }
                )
    return told


def _baseline(target: Target, entry: TimedPlan | None, found: Findings) -> dict[str, Any]:
    if entry is None:
        return {"target": str(target), "infeasible": found.infeasible.get(target, "not measured")}
    if not entry.timed:
        failure = told_failure([entry.failure, found.infeasible.get(target)])
        return {"target": str(target), "infeasible": failure or "not timed"}
    winner = found.winner
    latency_us, *interval = found.estimates.latency_us(
        entry, winner
    )  # beside itself there is none: it has its own
    said: dict[str, Any] = {
        "target": str(target),
        "latency_us": latency_us,
        "latency_interval_us": list(interval_us(winner)) if entry is winner else interval,
    }
    if (entry.error or 0.0) > found.tolerance:
        said["exceeds_tolerance"] = entry.error
    return said


def _plan(entry: TimedPlan, best: TimedPlan | None, found: Findings) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": entry.name,
        "partitions": len(entry.plan.partitions),
        "targets": [str(target) for target in entry.plan.targets],
        "predicted_us": entry.predicted_us,
    }
    if not entry.timed:
        return {**said, "infeasible": entry.failure or "not timed"}
    said["latency_us"], *_ = found.estimates.latency_us(entry, found.winner)
    said["max_relative_error"] = entry.error
    if best is not None:
        ratio = found.estimates.between(best, entry)
        said["speedup_over_best_single"] = ratio.ratio
        said["speedup_interval"] = [ratio.low, ratio.high]
    return said


def interval_us(entry: TimedPlan) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics of the blocks."""
    samples = sorted(entry.samples_us)
    n = len(samples)
    half = 0.98 * n**0.5
    low = max(0, int(n / 2 - half))
    high = min(n - 1, int(n / 2 + half))
    return samples[low], samples[high]

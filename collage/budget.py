"""Plans within an accuracy budget: proposals from probing, and shares of the budget for the search."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from backends.sandbox import ChildFailed, ChildLimits, run_in_child
from collage.accuracy import Mix, Probe, ProbeResult, cut_into_blocks, probe
from collage.end_to_end import Contest
from collage.estimates import Estimates
from collage.events import Event, Listener
from collage.refine import Entry
from collage.region_files import RegionFiles
from cost_db.row import CostRow
from partitioner.candidate import Candidate, Plan, bits
from partitioner.constraints import Budget
from partitioner.errors import CancelledError
from partitioner.graph_index import GraphIndex
from partitioner.target import Target

_BLOCKS = 16
# Probing aims below the tolerance: held-out samples err differently.
_ROOM = 0.85
_PLANS = 3
_MOST_REDUCED = 2


def choose_targets(
    rows: Mapping[Target, CostRow | None], estimates: Estimates, exact_error: float
) -> tuple[list[Target], list[Target]]:
    """Which targets are exact on the whole model, and which faster ones are not; fastest first.

    Args:
        rows: per target the measurement of the whole model.
        estimates: profiles; targets without one cannot be cut into blocks.
        exact_error: the largest error that counts as exact.
    """
    timed = [
        (row.latency_us, target, row.error or 0.0)
        for target, row in rows.items()
        if row is not None and row.latency_us is not None and estimates.times_us(target) is not None
    ]
    exact = [(us, target) for us, target, error in timed if error <= exact_error]
    if not exact:
        return [], []
    fastest_us = min(exact)[0]
    reduced = [(us, t) for us, t, error in timed if error > exact_error and us < fastest_us]
    return [t for _, t in sorted(exact)], [t for _, t in sorted(reduced)[:_MOST_REDUCED]]


@dataclass
class BudgetSearch:
    """Finds mixes of an exact and a reduced target within a tolerance.

    Args:
        index: the graph.
        regions: sub-models.
        template: samples, reference outputs and metric.
        used_samples: how many samples probing may see.
        listener: is told what was found.
        cancel: stops the child.
        shares: per reduced target and node its share of the squared error, once probed.
    """

    index: GraphIndex
    regions: RegionFiles
    template: Contest
    used_samples: int
    listener: Listener
    cancel: threading.Event | None = None
    shares: dict[Target, dict[int, float]] = field(default_factory=dict)

    def propose(
        self,
        exact: Target,
        reduced: Target,
        times_us: Mapping[Target, Mapping[int, float]],
        tolerances: Sequence[float],
    ) -> list[list[Entry]]:
        """Plans for each tolerance, the most promising first.

        Args:
            exact: a target that keeps every tolerance.
            reduced: a faster one.
            times_us: per target and node what it took in context.
            tolerances: bounds on the error of the outputs.
        """
        blocks = cut_into_blocks(self.index, times_us[exact], _BLOCKS)
        gains = tuple(
            sum(
                times_us[exact][i] - times_us[reduced][i]
                for i in range(len(self.index.nodes))
                if b >> i & 1
            )
            for b in blocks
        )
        request = Probe(
            blocks=tuple(self.regions.get(block) for block in blocks),
            gains_us=gains,
            exact=exact,
            reduced=reduced,
            inputs=self.template.inputs,
            samples_file=self.template.samples_file,
            expected_file=self.template.expected_file,
            used_samples=self.used_samples,
            metric=self.template.metric,
            goals=tuple(tolerance * _ROOM for tolerance in tolerances),
            threads=self.template.threads,
            cache_dir=self.template.cache_dir,
        )
        found = self._run(request)
        if found is None:
            return [[] for _ in tolerances]
        self.shares[reduced] = _shares(blocks, found)
        return [self._entries(blocks, exact, reduced, mixes) for mixes in found.best]

    def constraint(
        self, candidates: Sequence[Candidate], exact: Collection[Target], tolerance: float
    ) -> Budget:
        """The tolerance as a row of the search's program: squares of errors add up.

        Independent errors add in quadrature; docs/accuracy.md shows how well that predicts. Candidates of
        targets that were neither exact nor probed are left out.
        """
        amounts = tuple(0.0 if c.target in exact else self._amount(c) for c in candidates)
        return Budget("squared error", amounts, (tolerance * _ROOM) ** 2)

    def _amount(self, candidate: Candidate) -> float:
        shares = self.shares.get(candidate.target)
        if shares is None:
            return math.inf
        return sum(shares[i] for i in bits(candidate.nodes))

    def _run(self, request: Probe) -> ProbeResult | None:
        limits = ChildLimits(timeout_s=request.budget_s * 4 + 300)
        try:
            found = run_in_child(probe, request, limits=limits, cancel=self.cancel)
        except ChildFailed as failure:
            if failure.kind == "cancelled":
                raise CancelledError("cancelled while probing accuracy") from None
            self.listener(
                Event("accuracy", f"{request.reduced} cannot be mixed in by blocks: {failure.reason}")
            )
            return None
        everything = max(found.tried, key=lambda mix: mix.blocks.bit_count())
        self.listener(
            Event(
                "accuracy",
                f"{request.reduced}: {len(found.tried)} mixes of {len(request.blocks)} blocks tried, all of it "
                f"reduced has error {everything.error:.2g}",
                data={
                    "target": str(request.reduced),
                    "mixes": len(found.tried),
                    "whole_error": everything.error,
                },
            )
        )
        return found

    def _entries(
        self, blocks: Sequence[int], exact: Target, reduced: Target, mixes: Sequence[Mix]
    ) -> list[Entry]:
        plans: dict[Plan, Entry] = {}
        for mix in mixes:
            plan = _merged(blocks, exact, reduced, mix.blocks)
            name = f"{reduced} for {mix.blocks.bit_count()} of {len(blocks)} blocks"
            plans.setdefault(plan, Entry(plan, name))
            if len(plans) == _PLANS:
                break
        return list(plans.values())


def _shares(blocks: Sequence[int], found: ProbeResult) -> dict[int, float]:
    """Each block's squared error, shared equally among its nodes."""
    alone = {mix.blocks: mix.error for mix in found.tried}
    shares: dict[int, float] = {}
    for i, block in enumerate(blocks):
        error = alone.get(1 << i, math.inf)
        members = bits(block)
        shares |= {node: error**2 / len(members) for node in members}
    return shares


def _merged(blocks: Sequence[int], exact: Target, reduced: Target, mix: int) -> Plan:
    """Neighbouring blocks of one target are one partition."""
    partitions: list[Candidate] = []
    for i, block in enumerate(blocks):
        target = reduced if mix >> i & 1 else exact
        if partitions and partitions[-1].target == target:
            block |= partitions.pop().nodes
        partitions.append(Candidate(block, target, "budget"))
    return Plan(tuple(partitions))

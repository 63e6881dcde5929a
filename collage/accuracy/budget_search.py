"""Plans within an error budget: proposals from `block_search`, and a budget for the search."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collage.accuracy.block_cuts import blocks_between, first_cuts, whole_layers
from collage.accuracy.block_search import BlockSearchResult, search_blocks
from collage.accuracy.error_model import fastest_mix, time_us
from collage.accuracy.mix_partitions import mixable_pairs, partitions_of
from collage.accuracy.mix_runner import BlockSearchRequest, MixResult
from collage.accuracy.target_choice import TargetChoice
from collage.accuracy.task_errors import SearchTask
from collage.backends.machine.hardware import Hardware
from collage.backends.registry import on_gpus
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.costs.estimates import Estimates
from collage.events import Event, Listener
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.search.constraints import Budget
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.timing.request import TimingRequest
from collage.timing.timed_plan import Identity, TimedPlan, identity

# The search aims below the tolerance: held-out samples err differently.
_MARGIN = 0.9
_TIGHTER, _TIGHTEST = 0.9, 0.5
# Of the time left for running mixes.
_SHARE, _MOST_S, _LEAST_S, _LEAST_SHARE = 0.6, 75.0, 3.0, 0.2
_LEAST_MEMORY = 4 << 30
_MOST_PROPOSALS, _MOST_OTHERS = 3, 1
_RULE = "budget"


@dataclass
class BudgetSearch:
    """Finds mixes of an exact and some reduced targets within tolerances, and remembers their errors."""

    model: Model  # the normalized model
    template: TimingRequest  # samples, reference outputs and metric
    used_samples: int  # how many samples mixes are chosen by
    chosen: TargetChoice  # targets; its base computes what is not reduced
    estimates: Estimates  # profiles of them
    listener: Listener  # is told the results
    runner: Runner  # where mixes run
    cancel: threading.Event | None  # stops the child
    span_s: tuple[float, float]  # `time.monotonic()` at which the run began, and at which it is to end
    task: SearchTask | None = None  # with it tolerances are shares of what the task allows
    found: BlockSearchResult | None = field(default=None, init=False)
    base: Target = field(init=False)
    mixed: tuple[Target, ...] = field(init=False)
    _error_limits: dict[float, float] = field(default_factory=dict, init=False)
    _promised: dict[float, Plan] = field(default_factory=dict, init=False)
    _missed: set[Identity] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        assert self.chosen.base is not None  # where there is none, nothing is mixed
        self.base = self.chosen.base
        self.mixed = (*self.chosen.reduced, *self.chosen.rivals)

    def promised_us(self) -> float:
        """What the fastest mix of the first blocks would take by profiles, whatever it errs."""
        index, targets, times_us = self.model.index, (self.base, *self.mixed), self._times_us()
        laid = whole_layers(index)
        cuts = first_cuts(laid, times_us[0])
        blocks = blocks_between(index, laid, cuts, times_us, mixable_pairs(targets))
        chosen = fastest_mix(blocks, np.zeros((len(blocks), len(targets))), limit=1.0)
        return time_us(blocks, chosen)

    def propose(self, tolerances: Sequence[float]) -> list[TimedPlan]:
        """Plans for each tolerance, the most promising first.

        Args:
            tolerances: bounds on the error of the outputs, the most important first.
        """
        self._error_limits = {tolerance: tolerance * _MARGIN for tolerance in tolerances}
        # Nothing else finds mixes of many blocks, however late it is.
        least_s = min(_MOST_S, _LEAST_SHARE * (self.span_s[1] - self.span_s[0]))
        return self._search(self._error_limits, max(self._seconds, least_s))

    def correct(self, entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        """New plans for tolerances whose most promising proposal missed them on all samples.

        Their limits are tightened by as much as it missed, and the search goes on from what it knows.

        Args:
            entries: plans that were timed, or failed for their error.
        """
        if self.task is not None:  # plans are judged by the task itself
            return []
        errors = {identity(entry.plan): entry.error for entry in entries}
        tightened = {}
        for tolerance, plan in self._promised.items():
            error = errors.get(identity(plan))
            if error is not None and not error <= tolerance:
                factor = min(_TIGHTER, max(_TIGHTEST, tolerance / error))
                tightened[tolerance] = self._error_limits[tolerance] * factor
        if not tightened or self._seconds < _LEAST_S:
            return []
        self._error_limits |= tightened
        self._missed |= {identity(e.plan) for e in entries if e.error is not None and not e.timed}
        said = ", ".join(f"{tolerance:g}" for tolerance in tightened)
        self.listener(Event("accuracy", f"held-out samples exceed {said}: the budget is tightened"))
        return self._search(tightened, self._seconds)

    @property
    def _seconds(self) -> float:
        """Time for running mixes now."""
        return min(_MOST_S, _SHARE * (self.span_s[1] - time.monotonic()))

    def constraint(self, candidates: Sequence[Candidate], tolerance: float) -> Budget:
        """The tolerance as a constraint of the search: squares of errors add up (docs/results/error-addition.md).

        Candidates of targets that are neither exact nor in mixes are left out.
        """
        shares = self._node_shares()
        amounts = tuple(
            0.0 if c.target in self.chosen.exact else self._amount(shares.get(c.target), c)
            for c in candidates
        )
        goal = self._error_limits.get(tolerance, tolerance * _MARGIN)
        return Budget("squared error", amounts, goal**2)

    def _amount(self, shares: Mapping[int, float] | None, candidate: Candidate) -> float:
        return math.inf if shares is None else sum(shares[i] for i in bits(candidate.nodes))

    def _node_shares(self) -> dict[Target, dict[int, float]]:
        """Each block's share of the squared error, in equal parts by node."""
        if self.found is None:
            return {}
        laid = line(self.model.index, self.model.index.all_nodes)
        found: dict[Target, dict[int, float]] = {target: {} for target in self.mixed}
        for i, row in enumerate(self.found.shares):
            members = laid.order[self.found.cuts[i] : self.found.cuts[i + 1]]
            for target, share in zip(self.mixed, row[1:], strict=True):
                found[target] |= dict.fromkeys(members, share / len(members))
        return found

    def _times_us(self) -> tuple[tuple[float, ...], ...]:
        """Per target of mixes what each node takes, the base first."""
        count = len(self.model.index.nodes)
        times = [self.estimates.times_us(target) or {} for target in (self.base, *self.mixed)]
        return tuple(tuple(per_node[i] for i in range(count)) for per_node in times)

    def _search(self, error_limits: Mapping[float, float], budget_s: float) -> list[TimedPlan]:
        targets = (self.base, *self.mixed)
        request = BlockSearchRequest(
            model=self.model.path,
            targets=targets,
            times_us=self._times_us(),
            inputs=self.template.inputs,
            samples_file=self.template.samples_file,
            expected_file=self.template.expected_file,
            used_samples=self.used_samples,
            metric=self.template.metric,
            counted=self.template.counted,
            error_limits=tuple(error_limits.values()),
            threads=self.template.threads,
            budget_s=budget_s,
            cache_dir=self.template.cache_dir,
            known=self.found.tried if self.found else (),
            known_joined=self.found.joined if self.found else (),
            cuts=self.found.cuts if self.found else (),
            task=self.task,
        )
        found = self._run(request)
        if found is None:
            return []
        self.found = found
        self._tell(found, list(error_limits))
        plans: dict[Plan, TimedPlan] = {}
        for tolerance, mixes in zip(error_limits, found.best, strict=True):
            self._promised.pop(tolerance, None)
            for entry in self._entries(tolerance, mixes, _MOST_OTHERS if plans else _MOST_PROPOSALS):
                self._promised.setdefault(tolerance, entry.plan)
                plans.setdefault(entry.plan, entry)
        return list(plans.values())

    def _run(self, request: BlockSearchRequest) -> BlockSearchResult | None:
        gpus = on_gpus(request.targets)
        limits = ChildLimits(
            timeout_s=request.budget_s * 4 + 300,
            address_bytes=0 if gpus else address_space(self.model, self.runner.hardware),
            gpus=gpus,
        )
        last_touched: list[int] = []
        try:
            found: BlockSearchResult = self.runner.run(
                search_blocks,
                request,
                limits=limits,
                cancel=self.cancel,
                on_message=last_touched.append,
            )
            return found
        except ChildFailed as failure:
            culprit = request.targets[last_touched[-1]] if last_touched else request.targets[0]
            self.listener(
                Event("accuracy", f"{culprit} cannot be mixed in by blocks: {failure.reason}")
            )
            others = tuple(target for target in self.mixed if target != culprit)
        if culprit == request.targets[0] or not set(others) & set(self.chosen.reduced):
            return None
        # Known mixes are bitsets by target, so they go with it.
        self.mixed, self.found = others, None
        kept = [i for i, target in enumerate(request.targets) if target != culprit]
        return self._run(
            replace(
                request,
                targets=tuple(request.targets[i] for i in kept),
                times_us=tuple(request.times_us[i] for i in kept),
                known=(),
                known_joined=(),
                cuts=(),
            )
        )

    def _tell(self, found: BlockSearchResult, tolerances: Sequence[float]) -> None:
        bounds = {f"{t:g}": bound for t, bound in zip(tolerances, found.bounds, strict=True)}
        said = ", ".join(f"{bound:.2f} within {t}" for t, bound in bounds.items())
        names = ", ".join(map(str, self.mixed))
        if not found.tried:
            self.listener(Event("accuracy", f"{names}: no mix could run in time"))
            return
        everything = max(found.tried, key=self._reduced)
        unit = "" if self.task is None else " of what the task allows"
        self.listener(
            Event(
                "accuracy",
                f"{names}: {len(found.tried)} mixes of {len(found.cuts) - 1} blocks tried, "
                f"{len(found.joined)} as plans; with "
                f"{self._reduced(everything):.0%} reduced the error is {everything.error:.2g}{unit}; were borders "
                f"free, a mix is promised to be so many times as fast as {self.base}: {said}",
                data={
                    "targets": [str(target) for target in self.mixed],
                    "mixes": len(found.tried),
                    "blocks": len(found.cuts) - 1,
                    "whole_error": everything.error,
                    "bounds": bounds,
                },
            )
        )

    def _reduced(self, mix: MixResult) -> float:
        """The share of the base's time in nodes that a mix reduces."""
        times_us = self.estimates.times_us(self.base) or {}
        parts = zip(self.mixed, mix.reduced, strict=True)
        reduced = [i for target, nodes in parts if target in self.chosen.reduced for i in bits(nodes)]
        return sum(times_us[i] for i in reduced) / max(sum(times_us.values()), 1e-9)

    def _entries(self, tolerance: float, mixes: Sequence[MixResult], most: int) -> list[TimedPlan]:
        """Plans of mixes, with the exact rest on the base; of the first also on another exact target."""
        backends = {target.backend for target in self.chosen.reduced}
        own = [target for target in self.chosen.exact if target.backend in backends]
        others = [target for target in (self.chosen.exact[0], *own[:1]) if target != self.base]
        entries: list[TimedPlan] = []
        for mix in mixes:
            for exact in (self.base, *others[: not entries]):
                plan = self._plan(mix, exact)
                known = {identity(entry.plan) for entry in entries} | self._missed
                if identity(plan) not in known and len(entries) < most:
                    shape = " in blocks" if mix.apart else ""
                    name = f"{self._reduced(mix):.0%} reduced{shape}, for {tolerance:g}"
                    entries.append(TimedPlan(plan, name, proposed=True))
        return entries

    def _plan(self, mix: MixResult, exact: Target) -> Plan:
        """The plan of a mix; neighbors are one partition, unless reduced blocks stay apart."""
        assert self.found is not None
        targets = (exact, *self.mixed)
        laid = line(self.model.index, self.model.index.all_nodes)
        blocks = []
        for start, end in itertools.pairwise(self.found.cuts):
            nodes = laid.run(start, end)
            own = [number for number, taken in enumerate(mix.reduced, 1) if taken & nodes]
            blocks.append((nodes, own[0] if own else 0))
        reduced = [i for i, target in enumerate(targets) if target in self.chosen.reduced]
        inside = frozenset() if mix.apart else mixable_pairs(targets)
        parts = partitions_of(blocks, targets, inside, reduced if mix.apart else ())
        return Plan(tuple(Candidate(part.nodes, part.on(targets), _RULE) for part in parts))


def address_space(model: Model, machine: Hardware) -> int:
    """Bytes of address space for a child that opens a model.

    Each weight that is read maps the whole file of weights again, which takes no memory.
    """
    given = max(machine.memory_gib << 30, _LEAST_MEMORY)
    size = sum(file.stat().st_size for file in model.path.parent.iterdir() if file.is_file())
    return given + size * len(model.ir.graph.initializers)

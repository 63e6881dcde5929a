"""A model whose regions have stated true costs; no clock, no runtime."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from collage.costs.estimates import Estimates
from collage.events import ignore
from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.cost import Cost, Measured, Unknown
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target
from collage.search.blocks import layouts, own_blocks
from collage.search.lazy_search import LazySearch
from tests.partitioner.graphs import TextModel, text_model

TARGETS = (Target("null"), Target("torch"), Target("simulated"))
INFINITE = float("inf")
FREE = Constraints()


class StatedCosts:
    """Stated costs, given only on request, up to a limit."""

    def __init__(
        self,
        truth: Callable[[Candidate], Cost],
        most: int,
        at_other_sizes: Mapping[tuple[int, Target], float] | None = None,
    ) -> None:
        self._truth = truth
        self._most = most
        self._at_other_sizes = at_other_sizes or {}
        self.asked: dict[Candidate, Cost] = {}

    def cost(self, candidate: Candidate) -> Cost:
        return self.asked.get(plain(candidate), Unknown())

    def recall(self, candidates: Iterable[Candidate]) -> None:
        pass

    def expected_us(self, candidates: Iterable[Candidate]) -> Mapping[tuple[int, Target], float]:
        return self._at_other_sizes

    def measure(
        self,
        candidates: Sequence[Candidate],
        stop: Callable[[], bool] = lambda: False,
        limit_s: float | None = None,
    ) -> None:
        for candidate in candidates:
            if stop():
                return
            self.asked[plain(candidate)] = self._truth(candidate)
            assert len(self.asked) <= self._most, "more was measured than the solution needs"


def plain(candidate: Candidate) -> Candidate:
    return Candidate(candidate.nodes, candidate.target)


def chain(length: int) -> TextModel:
    ops = ("Relu", "Exp", "Sigmoid", "Tanh")
    steps = [f"v{i} = {ops[i % 4]}({f'v{i - 1}' if i else 'x'})" for i in range(length)]
    return text_model(f"g (float[64] x) => (float[64] v{length - 1}) {{ {'  '.join(steps)} }}")


class World:
    """True costs of every region: its nodes, and what cutting it out costs, with some luck."""

    def __init__(self, length: int, seed: int) -> None:
        self.model = chain(length)
        generator = random.Random(seed)
        # Each target is good at some stretches and bad at others, as runtimes are.
        self.node_us = {
            target: [100.0 * generator.choice((0.7, 1.0, 1.0, 1.6)) for _ in range(length)]
            for target in TARGETS
        }
        for target in TARGETS:
            for start in range(0, length, 8):
                factor = generator.choice((0.6, 1.0, 1.8))
                for i in range(start, min(start + 8, length)):
                    self.node_us[target][i] *= factor
        self.luck = random.Random(seed + 1)
        self.known: dict[Candidate, Cost] = {}
        specs = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS]
        self.candidates = enumerate_candidates(self.model, specs)  # type: ignore[arg-type]
        self.transitions = Transitions(default_call_us=5.0, border_us=dict.fromkeys(TARGETS, 20.0))

    def truth(self, candidate: Candidate) -> Cost:
        key = plain(candidate)
        if key not in self.known:
            own = sum(self.node_us[key.target][i] for i in bits(key.nodes))
            whole = key.nodes == self.model.index.all_nodes
            self.known[key] = Measured(own if whole else own + 40.0 * self.luck.uniform(0.5, 1.5))
        return self.known[key]

    def estimates(self, unprofiled: tuple[Target, ...]) -> Estimates:
        estimates = Estimates(self.model.index)
        for target in TARGETS:
            if target not in unprofiled:
                estimates.learn(target, dict(enumerate(self.node_us[target])))
        return estimates

    def search(
        self,
        costs: StatedCosts,
        deadline_s: float | None = None,
        candidates: CandidateSet | None = None,
        unprofiled: tuple[Target, ...] = (),
        constraints: Constraints = FREE,
    ) -> LazySearch:
        estimates = self.estimates(unprofiled)
        for target in unprofiled:
            estimates.spread(target, sum(self.node_us[target]))
        candidates = candidates or self.candidates
        plans = layouts(self.model.index, candidates.candidates, estimates)
        return LazySearch(
            self.model.index,
            candidates,
            costs,  # type: ignore[arg-type]
            estimates,
            self.transitions,
            constraints,
            deadline_s,
            ignore,
            blocks=[block for target, plan in plans.items() for block in own_blocks(plan, target)],
        )

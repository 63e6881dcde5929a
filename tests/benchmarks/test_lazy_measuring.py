"""The restricted candidates of the lazy measuring benchmark, and its counting source."""

from __future__ import annotations

from benchmarks.lazy_measuring import CountedCosts, cut_positions, restricted_candidates
from benchmarks.search_scaling.synthetic import instance
from collage.partitioner.candidate import Candidate
from collage.partitioner.cost import Measured, Unknown
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.target import Target

A, B = Target("alpha"), Target("beta")


def test_candidates_are_the_supported_runs_between_cuts() -> None:
    index = instance("nasnet", 120, 500).index
    order, positions = cut_positions(index, 5)
    assert sorted(order) == list(range(len(index.nodes)))
    assert positions[0] == 0 and positions[-1] == len(order) and len(positions) <= 7
    first = order[0]
    specs = [
        TargetSpec(A, "graph", lambda index, node: None),
        TargetSpec(B, "graph", lambda index, node: "not the first" if node == first else None),
    ]
    found = restricted_candidates(index, specs, 5)
    runs = len(positions) * (len(positions) - 1) // 2
    assert sum(c.target == A for c in found.candidates) == runs
    assert sum(c.target == B for c in found.candidates) == runs - (len(positions) - 1)
    assert found.refusals == {(first, B): "not the first"}
    assert all(index.is_convex(c.nodes) for c in found.candidates)


class _Key:
    def __init__(self, digest: str) -> None:
        self.digest = digest


class _Known:
    """Costs that are all known; alike candidates share a key."""

    def key(self, candidate: Candidate) -> _Key:
        return _Key(f"{candidate.nodes.bit_count()} {candidate.target}")

    def cost(self, candidate: Candidate) -> Measured:
        return Measured(float(candidate.nodes.bit_count()))


def test_costs_are_unknown_until_asked_for_and_counted_by_key() -> None:
    counted = CountedCosts(_Known())  # type: ignore[arg-type]
    one, alike, other = Candidate(0b01, A), Candidate(0b10, A), Candidate(0b11, A)
    assert counted.cost(one) == Unknown()
    counted.measure([one, alike])
    assert counted.cost(alike) == Measured(1.0) and counted.cost(other) == Unknown()
    assert len(counted.asked) == 1

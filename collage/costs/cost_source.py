"""What a search may ask about costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.row import CostRow
from collage.partitioner.candidate import Candidate
from collage.partitioner.cost import Cost
from collage.partitioner.target import Target


class CostSource(Protocol):
    """Costs of one model's candidates; tuning asks `collage.costs.measured_costs.MeasuredCosts`."""

    def key(self, candidate: Candidate) -> CostKey:
        """What makes two costs the same."""

    def cost(self, candidate: Candidate) -> Cost:
        """What is known of a candidate so far; nothing is measured."""

    def row(self, candidate: Candidate) -> CostRow | None:
        """The measurement of a candidate, where it is known."""

    def recall(self, candidates: Iterable[Candidate]) -> None:
        """Look up what is stored of these candidates."""

    def expected_us(self, candidates: Iterable[Candidate]) -> Mapping[tuple[int, Target], float]:
        """What some of those that are unknown may take, by the same regions at other sizes; never a cost."""

    def measure(
        self,
        candidates: Sequence[Candidate],
        stop: Callable[[], bool] = lambda: False,
        limit_s: float | None = None,
    ) -> None:
        """Make costs known, in the order given, until `stop` says so; each within so many seconds, or it stays unknown."""

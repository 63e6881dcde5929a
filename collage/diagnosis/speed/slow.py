"""The regions in which a target is slower than another by more than its share.

Terms: a target's *share* of a region is what it would take there if it were as much slower as it is on the
whole model. The *excess* is the time over the other side's.

The model is cut in blocks, both sides run all blocks as a plan, in turn, and the blocks with the largest excess
are looked into: a half that has most of its block's excess takes the block's place. Then both sides are timed
on each region alone, and in place: within the first side's running plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage.diagnosis.speed.sides import (
    JUDGING_BUILDS,
    LOOKING_BUILDS,
    Side,
    SideTimer,
    Times,
    step_times_of,
    times_of,
)
from collage.events import Event, Listener
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order, live_counts

_BLOCKS, _REGIONS = 12, 3
_MOST_OF_IT = 0.7
# A block that makes up most of the model's time has the model's ratio, but for noise.
_NEARLY = 0.95
_LOOKING_ROUNDS = 6
_SHOWN = 20


@dataclass(frozen=True)
class _Span:
    """A stretch of the line, and by how much the first side takes longer there alone or in its plan."""

    start: int
    end: int
    excess_us: float


class SlowSearch:
    """Compares two sides on one model.

    Args:
        index: the graph.
        timer: times plans.
        slow: the side that is looked at.
        fast: the other one.
        listener: is told about every step.
    """

    def __init__(
        self, index: GraphIndex, timer: SideTimer, slow: Side, fast: Side, listener: Listener
    ) -> None:
        self._index, self._timer, self._listener = index, timer, listener
        self._slow, self._fast = slow, fast
        self.costly: list[int] = []  # the node sets of the regions that were found
        self._untimed: list[str] = []  # why regions could not be timed
        self._order = linear_order(index, index.all_nodes)
        self._live = live_counts(index, index.all_nodes, self._order)

    def run(self) -> dict[str, Any]:
        """Both sides on the whole model, and the regions that cost most, the worst first."""
        spans = self._blocks()
        sides = (self._slow, self._fast)
        plans = [[(self._index.all_nodes, side)] for side in sides]
        plans += [[(self._nodes(s), side) for s in spans] for side in sides]
        self._tell(f"timing both as a whole and in {len(spans)} blocks")
        timed = self._timer.time(plans, JUDGING_BUILDS)
        found: dict[str, Any] = {
            "sides": [side.told(self._timer.environments) for side in sides],
            "errors": [timed.error(0), timed.error(1)],
            "failures": [timed.failure(0), timed.failure(1)],
            "regions": [],
        }
        if timed.failure(0) or timed.failure(1):
            return found
        whole = times_of(timed, 0, 1)
        found["whole"] = whole.as_json()
        if timed.failure(2) or timed.failure(3):
            return found | {"note": f"not in blocks: {timed.failure(2) or timed.failure(3)}"}
        share = max(1.0, whole.ratio.ratio)
        costly = []
        for position, span in enumerate(spans):
            times = step_times_of(timed, (2, position), (3, position))
            if times.ratio.low > 1.0 and times.ratio.ratio > _NEARLY * share:
                costly.append(_Span(span.start, span.end, times.excess_us))
        costly.sort(key=lambda span: -span.excess_us)
        for span in costly[:_REGIONS]:
            smallest = self._smallest(span)
            region = self._judged(smallest)
            if region is not None:
                found["regions"].append(region)
                self.costly.append(self._nodes(smallest))
        if self._untimed:
            count = f"{len(self._untimed)} of {len(costly[:_REGIONS])} regions could not be timed"
            found["note"] = f"{count}: {self._untimed[0]}"
        return found

    def _blocks(self) -> list[_Span]:
        """Stretches of about equal numbers of nodes, cut where few values cross."""
        count = len(self._order)
        size = max(1, -(-count // _BLOCKS))
        starts = [0]
        while count - starts[-1] > size:
            starts.append(self._cut(starts[-1] + max(1, size // 2), starts[-1] + size))
        return [_Span(a, b, 0.0) for a, b in zip(starts, [*starts[1:], count], strict=True)]

    def _cut(self, first: int, last: int) -> int:
        """The position in a range with the fewest values that cross it, the last one of several."""
        return min(range(max(1, first), last + 1), key=lambda p: (self._live[p], -p))

    def _smallest(self, span: _Span) -> _Span:
        """The part of a block that has most of its excess."""
        while span.end - span.start > 1:
            length = span.end - span.start
            middle = span.start + length // 2
            reach = length // 8
            cut = self._cut(max(span.start + 1, middle - reach), min(span.end - 1, middle + reach))
            halves = [_Span(span.start, cut, 0.0), _Span(cut, span.end, 0.0)]
            self._tell(f"looking into {length} nodes")
            excess = self._excess_alone([span, *halves])
            if excess is None or excess[0] <= 0:
                return span
            best = max((1, 2), key=lambda i: excess[i])
            if excess[best] < _MOST_OF_IT * excess[0]:
                return span
            span = _Span(halves[best - 1].start, halves[best - 1].end, excess[best])
        return span

    def _excess_alone(self, spans: Sequence[_Span]) -> list[float] | None:
        plans = [[(self._nodes(s), side)] for s in spans for side in (self._slow, self._fast)]
        timed = self._timer.time(plans, LOOKING_BUILDS, _LOOKING_ROUNDS)
        if any(timed.failure(i) for i in range(len(plans))):
            return None
        return [times_of(timed, 2 * i, 2 * i + 1).excess_us for i in range(len(spans))]

    def _judged(self, span: _Span) -> dict[str, Any] | None:
        """Both times alone and in place; None where they do not show that it is slower."""
        nodes = self._nodes(span)
        kinds = [self._index.nodes[i].op for i in bits(nodes)]
        self._tell(f"timing {len(kinds)} nodes alone and in place: {', '.join(kinds[:3])}")
        before, after = (
            self._nodes(_Span(a, b, 0.0)) for a, b in ((0, span.start), (span.end, len(self._order)))
        )
        alone = [[(nodes, self._slow)], [(nodes, self._fast)]]
        same_process = self._slow.environment == self._fast.environment
        around = self._slow, (self._slow if same_process else self._fast)
        in_place = [
            [(part, chosen) for part, chosen in ((before, side), (nodes, own), (after, side)) if part]
            for side, own in zip(around, (self._slow, self._fast), strict=True)
        ]
        timed = self._timer.time([*alone, *in_place], JUDGING_BUILDS)
        if failures := [failure for i in range(4) if (failure := timed.failure(i))]:
            self._untimed.append(failures[0])
            return None
        step = 1 if before else 0
        by_itself, placed = times_of(timed, 0, 1), step_times_of(timed, (2, step), (3, step))
        if not _is_slower(by_itself) and not _is_slower(placed):
            return None
        names = [self._index.nodes[i].name for i in bits(nodes)]
        shown = ", ".join(kinds[:_SHOWN]) + (" …" if len(kinds) > _SHOWN else "")
        return {
            "nodes": names,
            "operators": kinds[0] if len(kinds) == 1 else f"{len(kinds)} nodes: {shown}",
            "excess_us": placed.excess_us,
            "alone": by_itself.as_json(),
            "in_place": placed.as_json(),
        }

    def _nodes(self, span: _Span) -> int:
        return sum(1 << node for node in self._order[span.start : span.end])

    def _tell(self, text: str) -> None:
        self._listener(Event("slow", text))


def _is_slower(times: Times) -> bool:
    return times.ratio.low > 1.0


def fastest_other(
    timer: SideTimer, index: GraphIndex, target: Side, others: Sequence[Side]
) -> tuple[Side | None, dict[str, str]]:
    """The side that runs the whole model fastest, and why others cannot."""
    if not others:
        return None, {}
    plans = [[(index.all_nodes, side)] for side in others]
    timed = timer.time(plans, LOOKING_BUILDS, _LOOKING_ROUNDS)
    failed = {
        str(side.target): failure
        for i, side in enumerate(others)
        if (failure := timed.failure(i)) is not None
    }
    able = [i for i in range(len(others)) if timed.failure(i) is None]
    if not able:
        return None, failed
    best = min(able, key=lambda i: sorted(timed.builds[0].entries[i].samples_us)[_LOOKING_ROUNDS // 2])
    return others[best], failed

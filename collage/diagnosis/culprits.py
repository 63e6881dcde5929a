"""The smallest regions that fail alone: bisection over cuts, then delta debugging over nodes.

Each region gets the reference values of what it reads, so a fault never spreads into the next region, and
independent faults are told apart. A region whose halves are both right fails only as a whole. It is trimmed
from both ends, and then nodes inside are left out while it still fails.

Source: A. Zeller and R. Hildebrandt, "Simplifying and isolating failure-inducing input" (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collage.diagnosis.trial import Trial
from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order, live_counts

# How far from the middle a cut may lie, as a share of the region, for fewer values that cross it.
_OFF_MIDDLE = 1 / 8


class OutOfTrialsError(Exception):
    """The trials that were allowed are used up."""


@dataclass(frozen=True)
class Culprit:
    """A region that fails by itself."""

    nodes: int  # bitset
    trial: Trial
    is_smallest: bool  # False where the trials were used up before it was known


@dataclass(frozen=True)
class _Run:
    """A stretch of the line that fails."""

    start: int
    end: int
    trial: Trial


def find_culprits(
    index: GraphIndex,
    regions: Sequence[int],
    test: Callable[[int], Trial],
) -> list[Culprit]:
    """Find every smallest region that fails.

    A refusal is a failure only in a region that is refused as a whole: a runtime may refuse a cut's types.

    Args:
        index: the graph.
        regions: convex sets (bitsets) to look in.
        test: tries a convex set; raises `OutOfTrialsError` when there are no trials left.

    Returns:
        The culprits in the order of the graph; those that could not be narrowed come last.
    """
    found: list[Culprit] = []
    rest: list[Culprit] = []
    search = _Search(index, test)
    for region in regions:
        try:
            trial = test(region)
        except OutOfTrialsError:
            break
        if trial.outcome != "right":
            search.look_in(region, trial)
            found += search.found
            rest += search.rest
            search.found, search.rest = [], []
    found.sort(key=lambda culprit: culprit.nodes & -culprit.nodes)
    return [*found, *rest]


class _Search:
    def __init__(self, index: GraphIndex, test: Callable[[int], Trial]) -> None:
        self._index, self._test = index, test
        self._refused = False
        self._order: list[int] = []
        self._live: list[int] = []
        self._suspects: set[str] = set()
        self.found: list[Culprit] = []
        self.rest: list[Culprit] = []

    def look_in(self, region: int, trial: Trial) -> None:
        """Find the culprits of a region that fails."""
        self._refused = trial.outcome == "refused"
        self._order = linear_order(self._index, region)
        self._live = live_counts(self._index, region, self._order)
        stack = [_Run(0, len(self._order), trial)]
        while stack:
            run = stack.pop()
            try:
                stack += self._narrow(run)
            except OutOfTrialsError:
                self.rest += [self._culprit(r, False) for r in [run, *reversed(stack)]]
                return

    def _narrow(self, run: _Run) -> list[_Run]:
        """The parts of a run that fail, the worst last; none where the run itself is a culprit."""
        if run.end - run.start == 1:
            self._keep(self._culprit(run, True))
            return []
        around = self._around_a_suspect(run)
        if around:
            return around
        start = run.start
        while run.end - start > 1:
            cut = self._cut(start, run.end)
            left = self._tried(start, cut)
            if left is not None:
                return self._failing([(start, cut), (cut, run.end)])
            start = cut  # so the rest fails, or the run fails only as a whole
        if self._tried(start, run.end) is not None:
            return self._failing([(start, run.end)])
        self._keep(self._reduced(self._trimmed(run)))
        return []

    def _around_a_suspect(self, run: _Run) -> list[_Run]:
        """The parts that fail around a node that equals a culprit and fails too; none where there is no such node."""
        for p in range(run.start, run.end):
            look = fingerprint(self._index, 1 << self._order[p])
            if look not in self._suspects:
                continue
            if self._tried(p, p + 1) is not None:
                return self._failing([(run.start, p), (p, p + 1), (p + 1, run.end)])
            self._suspects.discard(look)  # the values decide, not the operator
        return []

    def _failing(self, parts: Sequence[tuple[int, int]]) -> list[_Run]:
        tried = [(start, end, self._tried(start, end)) for start, end in parts if start < end]
        failing = [_Run(start, end, trial) for start, end, trial in tried if trial is not None]
        return sorted(failing, key=lambda part: part.trial.error)

    def _cut(self, start: int, end: int) -> int:
        """A position near the middle with few values that cross it."""
        length = end - start
        reach = int(length * _OFF_MIDDLE)
        middle = start + length // 2
        cuts = range(max(start + 1, middle - reach), min(end, middle + reach + 1))
        return min(cuts, key=lambda p: (self._live[p], abs(p - middle)))

    def _trimmed(self, run: _Run) -> _Run:
        """The latest start and then the earliest end with which a run still fails."""
        low, high, best = run.start, run.end - 1, run
        while low < high:  # it fails from `low` on
            middle = (low + high + 1) // 2
            trial = self._tried(middle, run.end)
            if trial is not None:
                low, best = middle, _Run(middle, run.end, trial)
            else:
                high = middle - 1
        low, high = best.start + 1, run.end
        while low < high:  # it fails up to `high`
            middle = (low + high) // 2
            trial = self._tried(best.start, middle)
            if trial is not None:
                high, best = middle, _Run(best.start, middle, trial)
            else:
                low = middle + 1
        return best

    def _reduced(self, run: _Run) -> Culprit:
        """Leave out nodes inside, most at once first, while the rest is convex and still fails."""
        culprit = self._culprit(run, True)
        inner = self._order[run.start + 1 : run.end - 1]
        size = max(1, len(inner) // 2)
        while inner:
            for begin in range(0, len(inner), size):
                chunk = inner[begin : begin + size]
                rest = culprit.nodes & ~sum(1 << node for node in chunk)
                if not self._index.is_convex(rest):
                    continue
                try:
                    trial = self._test(rest)
                except OutOfTrialsError:
                    return Culprit(culprit.nodes, culprit.trial, False)
                if self._is_fault(trial):
                    culprit = Culprit(rest, trial, True)
                    inner = [node for node in inner if node not in chunk]
                    break
            else:
                if size == 1:
                    break
                size //= 2
        return culprit

    def _tried(self, start: int, end: int) -> Trial | None:
        """The trial of a run that fails, else None."""
        trial = self._test(self._nodes(start, end))
        return trial if self._is_fault(trial) else None

    def _is_fault(self, trial: Trial) -> bool:
        return trial.is_fault or (self._refused and trial.outcome == "refused")

    def _keep(self, culprit: Culprit) -> None:
        self.found.append(culprit)
        if culprit.nodes.bit_count() == 1:
            self._suspects.add(fingerprint(self._index, culprit.nodes))

    def _culprit(self, run: _Run, is_smallest: bool) -> Culprit:
        return Culprit(self._nodes(run.start, run.end), run.trial, is_smallest)

    def _nodes(self, start: int, end: int) -> int:
        return sum(1 << node for node in self._order[start:end])

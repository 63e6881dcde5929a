"""Which blocks of a model may be computed in reduced precision, found by running mixes.

Terms as in `collage.accuracy.error_model`. The model is cut into blocks, and `mix_runner` runs mixes of
them. The errors teach the shares of the blocks; the fastest mix that these promise to keep the limit
runs next, until nothing faster is promised. Then the blocks that bind the limit are halved, and so on.

Of many mixes some keep a limit by luck on these samples. So the most promising run on held-out samples
as well; where all miss the limit there, a tighter aim follows. A proposed mix was run as a plan on all
samples: with neighboring blocks of one target joined (`collage.accuracy.merged_mixes`), or left apart.

Invariant: this only proposes; the comparison of whole plans decides whether a plan keeps the tolerance.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage.accuracy.block_cuts import blocks_between, first_cuts, spent_us, whole_layers
from collage.accuracy.error_model import (
    Block,
    ReducedNodes,
    fastest_mix,
    fit_shares,
    mix_of,
    targets_of,
    time_us,
)
from collage.accuracy.merged_mixes import MergedMixes
from collage.accuracy.mix_partitions import MixPartition
from collage.accuracy.mix_runner import BlockSearchRequest, MixResult, MixRunner
from collage.partitioner.graph.model import Model
from collage.runtime.compiled import CompiledRegions

_MOST_BLOCKS = 44
_SPLITS, _ROUNDS, _STEPS = 6, 4, 8
# Proposals: as estimated, and with dearer borders, since their cost is a guess.
_BORDER_FACTORS = (1.0, 4.0, 16.0)
# A block with a smaller share of the time, or of the error, is not halved.
_TIME_WORTH_HALVING, _SHARE_WORTH_HALVING = 0.015, 0.15
_TIGHTER = 0.8
# Shares of the blocks that are reduced to learn what errors mean for a task.
_SPREAD = (0.25, 0.5, 0.75, 1.0)
# Mixes that run on held-out samples; where all miss a limit, the aim is lowered by a factor between
# these.
_KEPT, _TIGHTENINGS = 3, 4
_TIGHTEST_STEP, _LEAST_STEP = 0.6, 0.9
# Shares of the time: for blocks, and then for mixes as plans, however late it is.
_IN_BLOCKS, _IN_PIECES = 0.4, 0.3
# However long compiling blocks took: a mix of compiled blocks costs one inference.
_AT_LEAST = 0.25


@dataclass(frozen=True)
class BlockSearchResult:
    """The result of a search."""

    # per goal mixes that keep it, the most promising first; empty where none does
    best: tuple[tuple[MixResult, ...], ...]
    tried: tuple[MixResult, ...]  # every mix that was run in blocks, those known before included
    joined: tuple[MixResult, ...]  # every mix that was run as the plan that it becomes
    cuts: tuple[int, ...]  # positions of the model's line between blocks, both ends included
    # per block and target of the squared error, fitted near the first goal
    shares: tuple[tuple[float, ...], ...]
    # per goal, the speedup over the exact target that a mix of these blocks could have, were borders
    # free
    bounds: tuple[float, ...]


def most_saving_first(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Every reduced target with the position of each block: one target after the other, where it saves most first."""
    pairs = [(t, i) for i, block in enumerate(blocks) for t in range(1, len(block.times_us))]
    return sorted(pairs, key=lambda p: (p[0], blocks[p[1]].times_us[p[0]] - blocks[p[1]].times_us[0]))


def search_blocks(request: BlockSearchRequest) -> BlockSearchResult:
    """Run mixes until each limit has an answer or the time is up; called in a child."""
    compiled = CompiledRegions(request.threads, request.cache_dir)
    try:
        return BlockSearch(request, Model.open(request.model), compiled).go()
    finally:
        compiled.close()


@dataclass
class BlockSearch:
    """Searches mixes in this process."""

    request: BlockSearchRequest  # targets, samples and limits
    model: Model  # of the request
    compiled: CompiledRegions  # owns what is compiled

    def __post_init__(self) -> None:
        request = self.request
        self.deadline_s = time.monotonic() + _IN_BLOCKS * request.budget_s
        self.end_s = time.monotonic() + request.budget_s
        self.runs = MixRunner(request, self.model, self.compiled)
        self.error = self.runs.error
        self.errors = self.runs.errors
        self.laid = whole_layers(self.model.index)
        self.blocks: list[Block] = []
        self.aims = {goal: goal for goal in request.error_limits}
        self.cut(request.cuts or first_cuts(self.laid, request.times_us[0]))

    def go(self) -> BlockSearchResult:
        self.deadline_s = max(self.deadline_s, time.monotonic() + _AT_LEAST * self.request.budget_s)
        for _ in range(_ROUNDS):
            self.calibrate()
            for goal in self.request.error_limits:
                for target in range(1, len(self.request.targets)):
                    self.try_ends(target, self.aims[goal])
                self.seek(self.aims[goal])
                self.tighten(goal)
            if self.out_of_time or not self.halve():
                break
        shares = self.shares(self.request.error_limits[0])
        begin_s = time.monotonic()
        left_s = max(self.end_s - begin_s, _IN_PIECES * self.request.budget_s)
        each_s = left_s / len(self.request.error_limits)
        best = [
            self.proposed(g, begin_s + n * each_s) for n, g in enumerate(self.request.error_limits, 1)
        ]
        return BlockSearchResult(
            best=tuple(best),
            tried=tuple(MixResult(reduced, error) for reduced, error in self.errors.items()),
            joined=tuple(
                MixResult(reduced, error, latency_us=self.runs.joined_us[reduced])
                for reduced, error in self.runs.joined_errors.items()
            ),
            cuts=self.cuts,
            shares=tuple(tuple(map(float, row)) for row in shares),
            bounds=tuple(map(self.bound, self.request.error_limits)),
        )

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline_s

    def cut(self, cuts: tuple[int, ...]) -> None:
        """Make blocks between these positions, and find the error of each alone."""
        begin_s, first = time.monotonic(), not self.blocks
        known = {block.nodes for block in self.blocks}
        self.cuts = cuts
        blocks = blocks_between(
            self.model.index, self.laid, cuts, self.request.times_us, self.runs.inside
        )
        self.runs.use(blocks)
        self.alone = np.full((len(blocks), len(self.request.targets)), math.inf)
        self.alone[:, 0] = 0.0
        # Later cuts are no more than there is time for.
        ends_s = self.compiling_ends_s() if first else [math.inf] * len(self.request.targets)
        for target, i in most_saving_first(blocks):
            if time.monotonic() < ends_s[target]:
                self.alone[i, target] = self.alone_square(blocks[i], target)
        self.blocks = [
            self.usable(block, alone) for block, alone in zip(blocks, self.alone, strict=True)
        ]
        new = sum(block.nodes not in known for block in blocks)
        self.block_s = (time.monotonic() - begin_s) / max(new, 1)

    def compiling_ends_s(self) -> list[float]:
        """Until when the first blocks of each target are compiled, by `time.monotonic`.

        Where that is slow, mixes with one target are worth more than some blocks of all.
        """
        least_s = time.monotonic() + _AT_LEAST * self.request.budget_s
        others_s = self.deadline_s - _IN_BLOCKS * self.request.budget_s / 2
        others = len(self.request.targets) - 2
        return [math.inf, max(self.deadline_s, least_s), *[others_s] * others]

    def calibrate(self) -> None:
        """With a task, measure it on mixes from little reduced to all, and express errors by what that teaches."""
        if self.runs.task is None:
            return
        squares = np.where(np.isfinite(self.alone[:, 1:]), self.alone[:, 1:], np.inf)
        best, least = squares.argmin(axis=1) + 1, squares.min(axis=1)
        order = [int(i) for i in np.argsort(least) if math.isfinite(least[i])]
        for share in _SPREAD:
            some = {*order[: math.ceil(share * len(order))]}
            chosen = tuple(int(best[i]) if i in some else 0 for i in range(len(self.blocks)))
            if any(chosen) and not self.out_of_time:
                self.chosen_error(chosen)
                self.runs.held_out_error(mix_of(self.blocks, chosen, len(self.request.targets)))
        for i, block in enumerate(self.blocks):
            for target in range(1, len(self.request.targets)):
                if math.isfinite(self.alone[i, target]):
                    self.alone[i, target] = self.alone_square(block, target)

    def alone_square(self, block: Block, target: int) -> float:
        """Squared error of this block alone reduced; infinite where the target does not take it."""
        if (
            not math.isfinite(block.times_us[target])
            or self.runs.step(MixPartition(block.nodes, target)) is None
        ):
            return math.inf
        mix = [0] * (len(self.request.targets) - 1)
        mix[target - 1] = block.nodes
        return self.error(tuple(mix)) ** 2

    @staticmethod
    def usable(block: Block, alone: np.ndarray) -> Block:
        """The block, with infinite times where its error is unknown."""
        known = np.isfinite(alone)
        times = [us if known[target] else math.inf for target, us in enumerate(block.times_us)]
        return replace(block, times_us=tuple(times))

    def chosen_error(self, chosen: tuple[int, ...]) -> float:
        return self.error(mix_of(self.blocks, chosen, len(self.request.targets)))

    def try_ends(self, target: int, goal: float) -> None:
        """Reduce the longest prefix and the longest suffix that keep a goal, found by bisection."""
        usable = [math.isfinite(block.times_us[target]) for block in self.blocks]
        count = len(usable)
        for at_front in (True, False):
            kept, broken = 0, count + 1
            while broken - kept > 1 and not self.out_of_time:
                length = (kept + broken) // 2 if broken <= count else count
                inside = range(length) if at_front else range(count - length, count)
                chosen = tuple(target if i in inside and usable[i] else 0 for i in range(count))
                if not any(chosen) or self.chosen_error(chosen) <= goal:
                    kept = length
                else:
                    broken = length

    def shares(self, goal: float) -> np.ndarray:
        return fit_shares(self.blocks, self.alone, self.errors, goal)

    def bound(self, goal: float) -> float:
        """Speedup over the exact target of the fastest mix within a goal, were borders free."""
        chosen = fastest_mix(self.blocks, self.shares(goal), goal**2, 0.0)
        return sum(block.times_us[0] for block in self.blocks) / time_us(self.blocks, chosen, 0.0)

    def time_us(self, mix: ReducedNodes, factor: float = 1.0) -> float:
        return time_us(self.blocks, targets_of(self.blocks, mix), factor)

    def keeping(self, goal: float) -> list[MixResult]:
        """The mixes of the present blocks that keep a goal."""
        targets = len(self.request.targets)
        return [
            MixResult(mix, error)
            for mix, error in self.errors.items()
            if error <= goal
            and any(mix)
            and mix == mix_of(self.blocks, targets_of(self.blocks, mix), targets)
        ]

    def ranked(self, goal: float) -> tuple[MixResult, ...]:
        """The most promising mixes for each price of borders, then whatever else is fast."""
        kept = self.keeping(goal)
        first = []
        for factor in _BORDER_FACTORS if kept else ():
            times = [self.time_us(mix.reduced, factor) for mix in kept]
            first.append(kept[times.index(min(times))])
        rest = sorted(kept, key=lambda mix: self.time_us(mix.reduced))[:_STEPS]
        return tuple(dict.fromkeys([*first, *rest]))

    def tighten(self, goal: float) -> None:
        """Lower the aim until a mix keeps the goal on the held-out samples too."""
        for _ in range(_TIGHTENINGS):
            fastest = self.ranked(self.aims[goal])[:_KEPT]
            errors = [self.runs.held_out_error(mix.reduced) for mix in fastest]
            if self.out_of_time or not errors or min(errors) <= goal:
                return
            step = math.sqrt(goal / min(errors))
            self.aims[goal] *= min(_LEAST_STEP, max(_TIGHTEST_STEP, step))
            self.seek(self.aims[goal])

    def proposed(self, goal: float, end_s: float) -> tuple[MixResult, ...]:
        """The most promising mixes that keep the goal as plans, on all samples, where any does.

        A plan of few pieces may miss it where a mix in blocks keeps it, since a runtime rounds at other
        places. So the fastest mix in blocks is proposed too, unless it is one partition.
        """
        more = self.ranked(self.aims[goal])
        if self.runs.inside:
            now_s = time.monotonic()
            half_s = now_s + (end_s - now_s) / 2
            pieces = MergedMixes(self.runs, self.blocks, self.shares(goal), half_s, in_blocks=True)
            near = pieces.seek(self.aims[goal], more)
            kept = (
                mix
                for mix in near
                if time.monotonic() < end_s and self.runs.held_out_error(mix.reduced) <= goal
            )
            more = (*itertools.islice(kept, _KEPT), *more)
        in_blocks = self.fastest_in_blocks(goal)
        pieces = MergedMixes(self.runs, self.blocks, self.shares(goal), end_s)
        found = pieces.seek(goal, more)[:_KEPT]
        apart = [replace(in_blocks, apart=True)] if in_blocks and not self.all_inside(in_blocks) else []
        return (*found[:1], *apart, *found[1:]) or self.ranked(self.aims[goal])

    def all_inside(self, mix: MixResult) -> bool:
        """Whether a mix is one partition."""
        used = (target for target, nodes in enumerate(mix.reduced, 1) if nodes)
        return all((0, target) in self.runs.inside for target in used)

    def fastest_in_blocks(self, goal: float) -> MixResult | None:
        """The most promising mix that keeps a goal in blocks, on the held-out samples too."""
        found = sorted(self.keeping(goal), key=lambda mix: self.time_us(mix.reduced))
        if self.runs.task is not None:  # each takes an inference for every searched sample
            found = found[:_KEPT]
        return next((mix for mix in found if self.runs.held_out_error(mix.reduced) <= goal), None)

    def seek(self, goal: float) -> None:
        """Run the mix that is promised to be the fastest within a goal, and learn from it, until one keeps it."""
        for factor in _BORDER_FACTORS[:2]:
            scale = 1.0
            for _ in range(_STEPS):
                if self.out_of_time:
                    return
                chosen = fastest_mix(self.blocks, self.shares(goal), goal**2 * scale, factor)
                mix = mix_of(self.blocks, chosen, len(self.request.targets))
                if not any(chosen) or (mix in self.errors and self.errors[mix] <= goal):
                    break
                if mix in self.errors:
                    scale *= _TIGHTER  # the shares do not explain it: ask for less
                self.error(mix)
        self.grow(goal)

    def grow(self, goal: float) -> None:
        """Reduce more blocks of the fastest mix, the most time first, while the goal is kept."""
        kept = self.keeping(goal)
        best = min((self.time_us(mix.reduced), mix.reduced) for mix in kept)[1] if kept else None
        chosen = list(targets_of(self.blocks, best)) if best else [0] * len(self.blocks)
        moves = [
            (block.times_us[chosen[i]] - us, i, target)
            for i, block in enumerate(self.blocks)
            for target, us in enumerate(block.times_us)
            if target and target != chosen[i] and math.isfinite(us)
        ]
        shares = self.shares(goal)
        for gain_us, i, target in sorted(moves, reverse=True):
            more = [*chosen[:i], target, *chosen[i + 1 :]]
            promised = sum(shares[b, t] for b, t in enumerate(more))
            if self.out_of_time or gain_us <= 0 or promised > 2 * goal**2:
                continue
            faster = time_us(self.blocks, more) < time_us(self.blocks, chosen)
            if faster and self.chosen_error(tuple(more)) <= goal:
                chosen = more

    def halve(self) -> bool:
        """Halve the blocks that bind some goal; False when none is worth it."""
        total = sum(block.times_us[0] for block in self.blocks)
        worth: dict[int, float] = {}
        for goal in self.request.error_limits:
            ranked = self.ranked(goal)
            chosen = targets_of(self.blocks, ranked[0].reduced) if ranked else (0,) * len(self.blocks)
            shares = self.shares(goal)
            for i, (block, target) in enumerate(zip(self.blocks, chosen, strict=True)):
                saving = (block.times_us[target] - min(block.times_us)) / total
                costly = target and shares[i, target] > _SHARE_WORTH_HALVING * goal**2
                if saving > _TIME_WORTH_HALVING or (costly and not all(chosen)):
                    share = block.times_us[0] / total
                    worth[i] = max(worth.get(i, 0.0), saving if not costly else share)
        middles = {i: self.middle(i) for i in sorted(worth, key=lambda i: -worth[i])}
        found = [middle for middle in middles.values() if middle is not None]
        # Each middle makes two blocks, which are compiled and run.
        found = found[: min(_SPLITS, int((self.deadline_s - time.monotonic()) / (2 * self.block_s)))]
        if not found or len(self.blocks) + len(found) > _MOST_BLOCKS:
            return False
        self.cut(tuple(sorted({*self.cuts, *found})))
        return True

    def middle(self, i: int) -> int | None:
        """The cut point nearest to the middle of a block, by time."""
        start, end = self.cuts[i], self.cuts[i + 1]
        spent = spent_us(self.laid, self.request.times_us[0])
        half = (spent[start] + spent[end]) / 2
        inner = [position for position in self.laid.cuts if start < position < end]
        return min(inner, key=lambda position: abs(spent[position] - half), default=None)

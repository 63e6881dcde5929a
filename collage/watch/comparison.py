"""One artifact in two environments: faster, slower, wrong or the same, and in which blocks.

Both run in turn. What looks like a change is timed once more in builds that had no part in choosing it, and
counts only where these say so too. So a change is rarely seen where there is none, although many blocks are
looked at.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage.backends.measurement.ratio import Ratio, compare_builds
from collage.backends.numerics.comparison import is_judged
from collage.environments.interleaved import Interleaver
from collage.environments.work import BuildRequest, BuildResult, Entry, Environment
from collage.runner import Runner
from collage.watch.plans import WatchedPlan, watched_plan
from collage.watch.verdicts import Verdict

_BUILDS, _ROUNDS, _BLOCK_S = 5, 10, 0.06
# Smaller changes of the whole, and of a block, are of no use to anybody.
_WHOLE_CHANGE, _BLOCK_CHANGE = 1.03, 1.05
# A block's change counts where it is such a share of the whole at least.
_SHARE_OF_WHOLE = 0.005
# The error may grow so much over that of the artifact before it is wrong.
_HEADROOM = 4.0


@dataclass(frozen=True)
class Compared:
    """What a comparison found."""

    verdict: Verdict
    ratio: Ratio | None  # the other environment's time over this one's
    blocks: tuple[dict[str, Any], ...]  # those that changed
    errors: tuple[float | None, float | None]
    reason: str  # in one sentence
    latency_us: tuple[float, ...]  # of this environment's builds
    yardstick_us: tuple[float, ...]  # of the same builds
    is_fault_here: bool = False  # whether it is this environment that is wrong or failed


def compare(
    artifact: Path,
    here: Environment,
    other: Environment,
    runner: Runner,
    cancel: threading.Event | None = None,
) -> Compared:
    """Compare an artifact in two environments.

    Raises:
        BadInputError: the file is no artifact, or its model does not run on its inputs.
        TimingError: the builds failed for reasons that neither environment has.
        CancelledError: `cancel` was set.
    """
    with tempfile.TemporaryDirectory(prefix="collage-watch-") as folder:
        plan = watched_plan(artifact, Path(folder), runner.threads, cancel)
        return _Comparison(plan, here, other, runner, cancel).run()


class _Comparison:
    def __init__(
        self,
        plan: WatchedPlan,
        here: Environment,
        other: Environment,
        runner: Runner,
        cancel: threading.Event | None,
    ) -> None:
        self._plan = plan
        self._request = BuildRequest(
            (here, other),
            (plan.whole, plan.cut),
            (Entry(0, 0), Entry(1, 0), Entry(0, 1), Entry(1, 1)),
            threads=plan.threads,
            rounds=_ROUNDS,
            block_s=_BLOCK_S,
            metric=plan.report.get("metric", "max"),
            counted=is_judged(plan.report.get("tolerance", 1e-3)),
        )
        self._where = ("here", "here" if other is here else "there")
        self._runner, self._cancel = runner, cancel
        self._timed = Interleaver(self._request, runner, cancel)
        self._no_blocks: str | None = None  # why there are no times of blocks

    def run(self) -> Compared:
        """First builds choose, and later ones judge."""
        self._build()
        if self._no_blocks and (self._timed.failure(0) or self._timed.failure(1)):
            # A process that dies of a block takes the whole with it.
            alone = replace(self._request, entries=self._request.entries[:2])
            self._timed = Interleaver(alone, self._runner, self._cancel)
            self._build()
        if (fault := self._fault()) is not None:
            return fault
        first = self._timed.builds[:]
        whole, blocks = self._changed(first, range(len(self._plan.blocks)), _WHOLE_CHANGE)
        if whole is None and not blocks:
            return self._found("same", self._timed.ratio(1, 0), (), "no change beyond noise")
        self._build()
        if (fault := self._fault()) is not None:
            return fault
        later = self._timed.builds[len(first) :]
        confirmed, again = self._changed(later, blocks, 1.0)
        kept = [b for b in blocks if b in again and (again[b].ratio > 1) == (blocks[b].ratio > 1)]
        told = tuple(self._block(position, again[position]) for position in kept)
        ratio = _whole_ratio(later)
        if whole is not None and confirmed is not None and (whole > 1) == (confirmed > 1):
            verdict: Verdict = "slower" if confirmed > 1 else "faster"
            return self._found(verdict, ratio, told, f"the whole takes {ratio.ratio:.3f} times as long")
        slower = [block for block in told if block["ratio"] > 1]
        if slower or told:
            verdict = "slower" if slower else "faster"
            changed = f"{len(told)} of {len(self._plan.blocks)} blocks changed"
            return self._found(verdict, ratio, told, changed)
        return self._found("same", ratio, (), "what looked like a change was noise")

    def _build(self) -> None:
        """Make builds, and see whether blocks run too: a runtime may refuse what lies between them."""
        timed = self._timed
        timed.run(_BUILDS)
        for cut in range(2, len(timed.request.entries)):
            self._no_blocks = self._no_blocks or timed.failure(cut)

    def _fault(self) -> Compared | None:
        """What is said of an environment that does not run the whole, or is wrong; the other one first."""
        timed = self._timed
        errors = (timed.error(0), timed.error(1))
        allowed = max(
            self._plan.report.get("tolerance", 1e-3),
            _HEADROOM * (self._plan.report.get("max_relative_error") or 0.0),
        )
        for entry, where in ((1, "there"), (0, "here")):
            if (failure := timed.failure(entry)) is not None:
                return self._found(
                    "failed", None, (), f"it does not run {where}: {failure}", entry == 0
                )
        for entry, where in ((1, "there"), (0, "here")):
            error = errors[entry]
            if error is not None and not error <= allowed:
                reason = f"its error {where} is {error:.3g} and exceeds {allowed:.3g}"
                return self._found("wrong", None, (), reason, entry == 0)
        return None

    def _changed(
        self, builds: Sequence[BuildResult], positions: Any, least: float
    ) -> tuple[float | None, dict[int, Ratio]]:
        """The whole's ratio where it changed, else None; and the blocks that did."""
        whole = _whole_ratio(builds)
        moved = whole.ratio if _is_off(whole, least) else None
        blocks: dict[int, Ratio] = {}
        if self._no_blocks is not None:
            return moved, blocks
        for position in positions:
            ratio = _step_ratio(builds, position)
            share = abs(ratio.ratio - 1) * self._share(builds, position)
            if _is_off(ratio, _BLOCK_CHANGE if least > 1 else 1.0) and share >= _SHARE_OF_WHOLE:
                blocks[position] = ratio
        return moved, blocks

    @staticmethod
    def _share(builds: Sequence[BuildResult], position: int) -> float:
        """Of the time here."""
        own = [r[position] for b in builds for r in b.entries[2].step_us]
        all_of_it = [sum(r) for b in builds for r in b.entries[2].step_us]
        return sum(own) / max(sum(all_of_it), 1e-9)

    def _block(self, position: int, ratio: Ratio) -> dict[str, Any]:
        block = self._plan.blocks[position]
        return {
            "nodes": list(block.nodes),
            "operators": block.operators,
            "target": block.target,
            "ratio": ratio.ratio,
            "interval": [ratio.low, ratio.high],
        }

    def _found(
        self,
        verdict: Verdict,
        ratio: Ratio | None,
        blocks: tuple[dict[str, Any], ...],
        reason: str,
        is_fault_here: bool = False,
    ) -> Compared:
        timed = self._timed
        own = [sorted(b.entries[0].samples_us) for b in timed.builds]
        middles = tuple(samples[len(samples) // 2] for samples in own if samples)
        yardsticks = tuple(
            sorted(b.yardstick_us)[len(b.yardstick_us) // 2] for b in timed.builds if b.yardstick_us
        )
        if self._no_blocks is not None and verdict != "failed":
            reason += f"; not in blocks: {self._no_blocks}"
        errors = (timed.error(0), timed.error(1))
        return Compared(verdict, ratio, blocks, errors, reason, middles, yardsticks, is_fault_here)


def _is_off(ratio: Ratio, least: float) -> bool:
    """Whether a ratio is above or below one with its whole interval, and far enough."""
    slower = ratio.low > 1 and ratio.ratio >= least
    return slower or (ratio.high < 1 and ratio.ratio <= 1 / least)


def _whole_ratio(builds: Sequence[BuildResult]) -> Ratio:
    return compare_builds([(b.entries[1].samples_us, b.entries[0].samples_us) for b in builds])


def _step_ratio(builds: Sequence[BuildResult], position: int) -> Ratio:
    return compare_builds(
        [
            (
                [r[position] for r in b.entries[3].step_us],
                [r[position] for r in b.entries[2].step_us],
            )
            for b in builds
        ]
    )

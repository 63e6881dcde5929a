"""What the plans of all classes may hold in memory, and how many partitions fit that are compiled for one shape each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.sandbox.run import ChildFailed
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.report.verdict import title
from collage.shapes.traffic import MOST_KEPT
from collage.timing.compiling import Held, Parts, held_memory
from collage.timing.timed_plan import identity
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.changing import run_everywhere
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.hot import LEFT_OUT, HotPlan
from collage.tuning.time_left import NO_LIMIT, TimeLeft

OURS = "ours"
# Without a limit such partitions may add what is left of this times the memory of the leanest single target.
_OF_LEANEST = 1.3


Refusal = Callable[[Sequence[ChosenClass]], str | None]


@dataclass(frozen=True)
class Fitted:
    """Plans within a limit of memory.

    Args:
        classes: the classes of shapes.
        hot: of each class the plan for shapes that come often, or None.
        most_copies: so many partitions may stay compiled for one shape each.
        held: what processes hold, with these plans and with each single target.
        limit_bytes: what was kept; None where nothing was measured.
        notes: what the user should know.
    """

    classes: Sequence[ChosenClass]
    hot: Sequence[HotPlan | None]
    most_copies: int
    held: Mapping[str, Held]
    limit_bytes: int | None
    notes: tuple[str, ...]


def fit_memory(
    run: Run,
    regions: RegionFiles,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    hot: Sequence[HotPlan | None],
    stated_bytes: int | None,
    refusal: Refusal | None = None,
    left: TimeLeft = NO_LIMIT,
) -> Fitted:
    """The plans, or leaner ones where they hold more than a limit.

    Args:
        run: what the stages run with.
        regions: sub-models with free dimensions.
        timed: the representative shapes.
        classes: the plans that are the fastest.
        hot: their plans for shapes that come often.
        stated_bytes: the limit; None for none.
        refusal: why other plans than these may not be returned, or None; without it all may.
        left: the time of the run; a limit that is stated is kept however late it is.

    Raises:
        NoPlanError: no plan for all shapes is within the limit and may be returned.
    """
    measured = _Measured(run, regions, timed, NO_LIMIT if stated_bytes is not None else left)
    plan_s = max(at.plan_s for at in timed)
    if stated_bytes is None and left.leaves_out("the memory of processes", 2 * plan_s):
        if any(hot):
            left.tell(LEFT_OUT)
        classes, hot = _joined(classes, [None] * len(classes))
        return Fitted(classes, hot, MOST_KEPT, {}, None, ())
    ours = measured.held([one.plan for one in classes])
    singles: dict[str, Held] = {}
    for target, (free, _) in timed[0].singles().items():
        runs = all(at.find(free.plan, at.dynamic) is not None for at in timed)
        if runs and not left.leaves_out(f"the memory of {target} alone", plan_s):
            single = measured.held([free.plan])
            singles |= {} if single is None else {str(target): single}
    notes: list[str] = []
    if stated_bytes is not None and (ours is None or ours.peak_bytes > stated_bytes):
        classes, ours, note = _leaner(measured, timed, ours, stated_bytes, refusal)
        hot = [None]
        notes.append(note)
    held = singles if ours is None else {OURS: ours, **singles}
    limit_bytes = stated_bytes
    if stated_bytes is None and held:
        # Of ours where no single target runs at all shapes, or may.
        peaks = [one.peak_bytes for one in (singles or held).values()]
        limit_bytes = int(_OF_LEANEST * min(peaks))
    most = MOST_KEPT
    if any(hot) and (ours is None or limit_bytes is None) and not left.fits(plan_s):
        # Nobody knows how many fit.
        hot = [None] * len(classes)
        left.tell(LEFT_OUT)
    if ours is not None and limit_bytes is not None and any(hot):
        most = measured.copies(classes, hot, limit_bytes)
        if any(one is not None and len(one.plan.partitions) > most for one in hot):
            hot = [None] * len(classes)
            notes.append(
                f"plans compiled for one shape alone are faster where a shape comes often, but do not fit into "
                f"{limit_bytes >> 20} MiB; a larger --memory-limit allows them"
            )
    classes, hot = _joined(classes, hot)
    return Fitted(classes, hot, most, held, limit_bytes, tuple(notes))


def _joined(
    classes: Sequence[ChosenClass], hot: Sequence[HotPlan | None]
) -> tuple[list[ChosenClass], list[HotPlan | None]]:
    """The classes, of which neighbors of one plan are one where none has a hot plan any more."""
    made: list[tuple[ChosenClass, HotPlan | None]] = []
    for one, warm in zip(classes, hot, strict=True):
        last, last_warm = made[-1] if made else (None, None)
        is_same = last is not None and identity(last.plan) == identity(one.plan)
        if last is not None and is_same and warm is None and last_warm is None:
            made[-1] = replace(last, up_to=one.up_to, shapes=(*last.shapes, *one.shapes)), None
        else:
            made.append((one, warm))
    return [one for one, _ in made], [warm for _, warm in made]


class _Measured:
    """Measures the memory of plans, each once."""

    def __init__(
        self, run: Run, regions: RegionFiles, timed: Sequence[AtShape], left: TimeLeft
    ) -> None:
        self._run, self._regions, self._timed, self._left = run, regions, timed, left
        self._known: dict[frozenset[object], Held | None] = {}

    def held(self, plans: Sequence[Plan]) -> Held | None:
        """What a process holds that ran some plans at all shapes; None where that fails."""
        own = {identity(plan): plan for plan in plans}
        key = frozenset(own)
        if key not in self._known:
            self._known[key] = self._child([self._parts(plan) for plan in own.values()], [])
        return self._known[key]

    def copies(
        self, classes: Sequence[ChosenClass], hot: Sequence[HotPlan | None], limit_bytes: int
    ) -> int:
        """How many partitions compiled for one shape each fit beside the plans for all shapes."""
        alone = [
            (self._parts(warm.plan), one.shapes)
            for one, warm in zip(classes, hot, strict=True)
            if warm is not None
        ]
        plans = {identity(one.plan): one.plan for one in classes}
        found = self._child([self._parts(plan) for plan in plans.values()], alone)
        if found is None:
            return 0
        return copies_within(found, [len(shapes) for _, shapes in alone], limit_bytes)

    def _child(
        self, plans: Sequence[Parts], alone: Sequence[tuple[Parts, Sequence[int]]]
    ) -> Held | None:
        model = self._regions.model.index
        try:
            found: Held = self._run.runner.run(
                held_memory,
                plans,
                alone,
                [model.values[value] for value in model.inputs],
                [at.sampling.chosen_by.samples[0] for at in self._timed],
                self._timed[0].sampling.threads,
                limits=self._left.limits,
                cancel=self._run.cancel,
            )
        except ChildFailed:
            return None
        return found

    def _parts(self, plan: Plan) -> Parts:
        return [(self._regions.of(part), part.target) for part in plan.partitions]


def copies_within(held: Held, counts: Sequence[int], limit_bytes: int) -> int:
    """How many partitions compiled for one shape each fit into a limit, at most `MOST_KEPT`.

    What the first shape of a plan adds beside the others of it, such as a runtime's library, is added once.

    Args:
        held: a process with all plans.
        counts: of each plan that is compiled for one shape alone, at how many shapes it was.
        limit_bytes: of the whole process.
    """
    once_bytes = each_bytes = 0.0
    position = 0
    for count in counts:
        own = [added / parts for parts, added in held.copies[position : position + count]]
        parts = held.copies[position][0]
        position += count
        rest = own[1:] or own
        mean = max(0.0, math.fsum(rest) / len(rest))
        once_bytes += max(0.0, own[0] - mean) * parts
        each_bytes = max(each_bytes, mean)
    left_bytes = limit_bytes - held.peak_bytes - once_bytes
    if left_bytes < 0:
        return 0
    return MOST_KEPT if each_bytes == 0 else min(MOST_KEPT, int(left_bytes / each_bytes))


def _leaner(
    measured: _Measured,
    timed: Sequence[AtShape],
    ours: Held | None,
    limit_bytes: int,
    refusal: Refusal | None,
) -> tuple[list[ChosenClass], Held, str]:
    """The fastest plan for all shapes that is within a limit, as the only class; and a sentence that says so."""
    least: tuple[int, str] | None = None
    refused: list[str] = []
    for plan in run_everywhere(timed):
        held = measured.held([plan])
        if held is None:
            continue
        name = " and ".join(dict.fromkeys(title(str(target)) for target in plan.targets))
        one = ChosenClass(None, plan, tuple(range(len(timed))))
        if held.peak_bytes <= limit_bytes:
            if refusal is not None and (reason := refusal([one])) is not None:
                refused.append(f"{name}: {reason}")
                continue
            before = "fail" if ours is None else f"hold up to {ours.peak_bytes >> 20} MiB"
            note = (
                f"the fastest plans {before} where all sizes run, and the limit is {limit_bytes >> 20} MiB; so "
                f"{name} is returned for all sizes, which holds up to {held.peak_bytes >> 20} MiB"
            )
            return [one], held, note
        least = min(least or (held.peak_bytes, name), (held.peak_bytes, name))
    leanest = "" if least is None else f"; the leanest is {least[1]} with {least[0] >> 20} MiB"
    if refused:
        raise NoPlanError(
            f"no plan within {limit_bytes >> 20} MiB passes the evaluation: {'; '.join(refused)}; give a larger "
            "--memory-limit, or a wider bound"
        )
    raise NoPlanError(
        f"no plan runs all sizes within {limit_bytes >> 20} MiB{leanest}; give a larger --memory-limit, smaller "
        "sizes, or other targets"
    )

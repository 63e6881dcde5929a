"""The last word on classes: what they take where shapes change from call to call.

Plans are compared at shapes that repeat. Some runtimes compile parts of themselves anew at each shape that they have not
seen lately. So where requests have such shapes, the classes run beside each simpler choice at shapes that change. The
time at new shapes and that at repeated ones count by their shares of the requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from collage.backends.numerics.reference import table_bounds
from collage.backends.sandbox.run import ChildFailed
from collage.model.reference import Sample
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.tensor import TensorSpec
from collage.report.verdict import title
from collage.shapes.classes import axes_of, extent, specs_at
from collage.shapes.traffic import Traffic
from collage.timing.changing import changing_us
from collage.timing.timed_plan import identity
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape, compiled_dir
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.time_left import NO_LIMIT, TimeLeft

CALLS, _MOST_CHOICES = 40, 5
# So much less another choice must take, in either half of the calls.
_BETTER = 0.97


def proven_by_changing(
    run: Run,
    regions: RegionFiles,
    traffic: Traffic,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    seconds: float,
    left: TimeLeft = NO_LIMIT,
) -> tuple[Sequence[ChosenClass], str | None]:
    """The classes, or one plan for all shapes that takes less where shapes change; then also a sentence that says so.

    Args:
        run: what the stages run with.
        regions: sub-models with free dimensions.
        traffic: the shapes of requests.
        timed: its representative shapes.
        classes: as they were chosen by repeated calls.
        seconds: for the calls.
        left: the time of the run; fewer plans are compared where it is short.
    """
    share = traffic.new_share
    if not share:
        return classes, None
    others = [plan for plan in run_everywhere(timed)[:_MOST_CHOICES] if not _is(classes, plan)]
    if not others:
        return classes, None
    plan_s = max(at.plan_s for at in timed)
    if left.leaves_out("comparing plans at sizes that change", 2 * plan_s):
        return classes, None
    while len(others) > 1 and not left.fits((1 + len(others)) * plan_s):
        others.pop()
    choices = [
        [(one.up_to, _parts(regions, one.plan)) for one in classes],
        *([(None, _parts(regions, plan))] for plan in others),
    ]
    free = regions.model
    index = free.index
    inputs = [index.values[name] for name in index.inputs]
    try:
        with run.runner.alone(run.cancel):
            spent = run.runner.run(
                changing_us,
                choices,
                inputs,
                [(extent(sizes), specs) for sizes, specs in calls_at(free, traffic.draw(CALLS + 1))],
                table_bounds(index),
                [name for name in index.outputs if name in index.producer],
                timed[0].sampling.threads,
                min(seconds, left.seconds),
                sample_of(timed),
                compiled_dir(run),
                limits=left.limits,
                cancel=run.cancel,
            )
    except ChildFailed as failure:
        return classes, f"plans could not be compared at sizes that change: {failure.reason}"
    ours, *theirs = spent
    for_all = [_for_all(timed, plan) for plan in others]
    repeated_us = [_repeated_us(timed, [one]) for one in for_all]
    best = min(range(len(theirs)), key=lambda i: _mixed(share, theirs[i], repeated_us[i]))
    ours_repeated_us, half = _repeated_us(timed, classes), len(ours) // 2
    is_faster = all(
        _mixed(share, theirs[best][part], repeated_us[best])
        < _BETTER * _mixed(share, ours[part], ours_repeated_us)
        for part in (slice(half), slice(half, None), slice(None))
    )
    runs_where_ours_does_not = math.isinf(sum(ours)) and math.isfinite(sum(theirs[best]))
    if not (is_faster or runs_where_ours_does_not):
        return classes, None
    ours_us, best_us = (sum(times) / len(times) for times in (ours, theirs[best]))
    names = ", ".join(dict.fromkeys(title(str(t)) for t in others[best].targets))
    ours_text = f"{ours_us / 1e3:.3g} ms" if math.isfinite(ours_us) else "does not run at some"
    note = (
        f"{share:.0%} of the requests have a size that did not come lately: there {names} takes "
        f"{best_us / 1e3:.3g} ms in the mean, and what is fastest at sizes that repeat {ours_text}; so {names} is "
        "returned for all sizes. Where few sizes come again and again, list them: --dim NAME=16,64,128"
    )
    return [for_all[best]], note


def _for_all(timed: Sequence[AtShape], plan: Plan) -> ChosenClass:
    return ChosenClass(None, plan, tuple(range(len(timed))), None)


def _mixed(share: float, new_us: Sequence[float], repeated_us: float) -> float:
    """The mean time of a request, of which some have new shapes."""
    return share * sum(new_us) / len(new_us) + (1 - share) * repeated_us


def _repeated_us(timed: Sequence[AtShape], classes: Sequence[ChosenClass]) -> float:
    """The mean time at shapes that repeat; there a hot plan runs where there is one."""
    total = 0.0
    for one in classes:
        for at in (timed[i] for i in one.shapes):
            plan = at.find(one.plan, at.dynamic)
            hot = None if one.hot is None else at.find(one.hot, at.fixed)
            assert plan is not None, "a class has only shapes where its plan runs"
            total += at.bound.shape.weight * at.latency_us(hot or plan, plan)
    return total


def sample_of(timed: Sequence[AtShape]) -> Sample | None:
    """A sample that the user gave, of the shape that counts most; None without any."""
    given = [at for at in timed if at.sampling.inputs is not None]
    most = max(given, key=lambda at: at.bound.shape.weight, default=None)
    return None if most is None else most.sampling.chosen_by.samples[0]


def run_everywhere(timed: Sequence[AtShape]) -> list[Plan]:
    """Plans for any shape that run at each representative one, the fastest by weight first."""
    known = {identity(entry.plan): entry.plan for entry in timed[0].dynamic}
    cost: list[tuple[float, int, Plan]] = []
    for number, plan in enumerate(known.values()):
        entries = [at.find(plan, at.dynamic) for at in timed]
        found = [entry for entry in entries if entry is not None]
        if len(found) == len(timed):
            weights = [at.bound.shape.weight for at in timed]
            us = math.fsum(w * entry.latency_us for w, entry in zip(weights, found, strict=True))
            cost.append((us, number, plan))
    return [plan for _, _, plan in sorted(cost)]


def _is(classes: Sequence[ChosenClass], plan: Plan) -> bool:
    return all(identity(one.plan) == identity(plan) for one in classes)


def _parts(regions: RegionFiles, plan: Plan) -> list[tuple[object, object]]:
    return [(regions.of(partition), partition.target) for partition in plan.partitions]


def calls_at(
    free: Model, drawn: Sequence[dict[str, int]]
) -> list[tuple[dict[str, int], Sequence[TensorSpec]]]:
    """The model's inputs at sizes of its free dimensions, each with the sizes."""
    axes, inputs = axes_of(free), [free.index.values[name] for name in free.index.inputs]
    return [(sizes, specs_at(inputs, axes, sizes)) for sizes in drawn]

"""Plans within a limit of memory, where all that processes hold is stated."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.shapes.traffic import MOST_KEPT
from collage.timing.compiling import Held
from collage.tuning.run import Run
from collage.tuning.shapes.choice import ChosenClass, choose_classes
from collage.tuning.shapes.hot import HotPlan
from collage.tuning.shapes.memory import OURS, Fitted, Refusal, copies_within, fit_memory
from collage.tuning.time_left import NO_LIMIT, TimeLeft
from tests.collage.tuning.shapes.stated import MODEL, A, B, C, shapes

_MIB = 1 << 20
_PEAKS = {str(A): 200, str(B): 100, str(C): 150}


class _StatedRunner:
    """Each target holds what is stated, several hold their sum; a copy for one shape holds 20 MiB."""

    def run(self, function: Any, plans: Any, alone: Any, *rest: Any, **_: Any) -> Held:
        targets = {str(target) for plan in plans for _, target in plan}
        peak = sum(_PEAKS[target] for target in targets)
        copies = tuple((len(plan), 20 * _MIB) for plan, places in alone for _ in places)
        return Held((peak - 10) * _MIB, peak * _MIB, copies)


def _us(target: str, size: int) -> float:
    """At small sizes A is the fastest, at large ones C; B takes 2.5 times as long as the fastest."""
    fast = {str(A): 10.0 + size, str(C): 60.0 + size / 10}
    return fast[target] if target in fast else 2.5 * min(fast.values())


def _fitted(
    limit_mib: int | None,
    hot: Plan | None = None,
    refusal: Refusal | None = None,
    left: TimeLeft = NO_LIMIT,
) -> Fitted:
    timed = shapes({1: 0.5, 100: 0.5}, _us)
    for at in timed:
        cast(Any, at.sampling).chosen_by = SimpleNamespace(samples=[{}])
        at._timer.plan_s = 1.0
    classes = choose_classes(timed)
    assert [str(one.plan.targets[0]) for one in classes] == [str(A), str(C)]
    run = cast(Run, SimpleNamespace(runner=_StatedRunner(), cancel=None))
    regions = cast(RegionFiles, SimpleNamespace(model=MODEL, of=lambda part: part.nodes))
    warm = None if hot is None else HotPlan(hot, 1.0, 5)
    limit = None if limit_mib is None else limit_mib * _MIB
    return fit_memory(run, regions, timed, classes, [warm] * len(classes), limit, refusal, left)


def _targets(fitted: Fitted) -> list[str]:
    return [str(one.plan.targets[0]) for one in fitted.classes]


def test_without_a_limit_the_fastest_plans_stay() -> None:
    fitted = _fitted(None)
    assert _targets(fitted) == [str(A), str(C)] and not fitted.notes
    assert {name: held.peak_bytes // _MIB for name, held in fitted.held.items()} == {
        OURS: 350,
        **_PEAKS,
    }


@pytest.mark.parametrize(
    ("limit_mib", "target"), [(349, A), (200, A), (199, C), (150, C), (149, B), (100, B)]
)
def test_the_fastest_plan_within_the_limit_is_returned(limit_mib: int, target: Any) -> None:
    fitted = _fitted(limit_mib)
    assert _targets(fitted) == [str(target)] and fitted.classes[0].up_to is None
    assert fitted.held[OURS].peak_bytes <= limit_mib * _MIB
    assert f"the limit is {limit_mib} MiB" in fitted.notes[0]


def test_a_limit_that_no_plan_keeps_is_an_error_that_names_the_leanest() -> None:
    with pytest.raises(
        NoPlanError, match=r"within 99 MiB; the leanest is .* with 100 MiB; give a larger"
    ):
        _fitted(99)


def _refuses_a(classes: Sequence[ChosenClass]) -> str | None:
    return "0.5 is too little" if classes[0].plan.targets[0] == A else None


def test_leaner_plans_must_pass_the_evaluation() -> None:
    assert _targets(_fitted(200, refusal=_refuses_a)) == [str(C)]
    with pytest.raises(NoPlanError, match=r"within 149 MiB passes the evaluation: .*: never"):
        _fitted(149, refusal=lambda classes: "never")


@pytest.mark.parametrize(
    ("limit_mib", "most", "is_hot"), [(360, 0, False), (395, 2, True), (2000, MOST_KEPT, True)]
)
def test_copies_for_one_shape_take_what_is_left(limit_mib: int, most: int, is_hot: bool) -> None:
    single = shapes({1: 1.0}, _us)[0].singles()[A][0].plan
    fitted = _fitted(limit_mib, hot=single)
    assert all((one is not None) == is_hot for one in fitted.hot)
    assert fitted.most_copies == most
    assert bool(fitted.notes) != is_hot


@pytest.mark.parametrize(
    ("left_s", "known"), [(1.5, []), (2.5, [OURS, str(A), str(B), str(C)]), (0.5, [])]
)
def test_what_is_held_is_not_measured_where_the_time_is_up(left_s: float, known: list[str]) -> None:
    single = shapes({1: 1.0}, _us)[0].singles()[A][0].plan
    left = TimeLeft(0.0, 10.0, clock=lambda: 20.0 - left_s)
    fitted = _fitted(None, hot=single, left=left)
    assert list(fitted.held) == known and not any(fitted.hot)
    assert _targets(fitted) == [str(A), str(C)]
    told = "the memory of processes, plans compiled for one size alone"
    assert left.warnings == (
        []
        if known
        else [f"for all sizes the time limit of 10 s left out: {told}; allow more with --time-limit"]
    )


def test_a_limit_of_memory_is_kept_however_late_it_is() -> None:
    left = TimeLeft(0.0, 10.0, clock=lambda: 100.0)
    fitted = _fitted(149, left=left)
    assert _targets(fitted) == [str(B)] and list(fitted.held) == [OURS]


def test_without_a_limit_copies_keep_to_the_leanest_target() -> None:
    single = shapes({1: 1.0}, _us)[0].singles()[A][0].plan
    fitted = _fitted(None, hot=single)  # both classes hold more than 1.3 times what B holds
    assert fitted.limit_bytes == 130 * _MIB and not any(fitted.hot)


@pytest.mark.parametrize(("limit_mib", "ends"), [(1000, [10, 40, None]), (255, [40, None])])
def test_classes_that_differ_in_a_hot_plan_alone_are_one_without(
    limit_mib: int, ends: list[int | None]
) -> None:
    timed = shapes({1: 0.4, 20: 0.3, 100: 0.3}, _us)
    for at in timed:
        cast(Any, at.sampling).chosen_by = SimpleNamespace(samples=[{}])
    first, second = (timed[0].singles()[target][0].plan for target in (B, C))
    plans = [(10, first), (40, first), (None, second)]
    classes = [ChosenClass(up_to, plan, (i,)) for i, (up_to, plan) in enumerate(plans)]
    run = cast(Run, SimpleNamespace(runner=_StatedRunner(), cancel=None))
    regions = cast(RegionFiles, SimpleNamespace(model=MODEL, of=lambda part: part.nodes))
    hot = [HotPlan(second, 1.0, 5), None, None]
    fitted = fit_memory(run, regions, timed, classes, hot, limit_mib * _MIB)
    assert (fitted.hot[0] is not None) == (limit_mib == 1000)
    assert [one.up_to for one in fitted.classes] == ends
    assert [i for one in fitted.classes for i in one.shapes] == [0, 1, 2]


@pytest.mark.parametrize(
    ("copies", "counts", "most"),
    [
        ([(1, 50), (1, 10), (1, 10)], [3], 6),  # the first loads a library
        ([(2, 40), (2, 40)], [2], 5),
        ([(1, 50), (1, 10), (1, 20), (1, 20)], [2, 2], 3),
        ([(1, 0), (1, 0)], [2], MOST_KEPT),
        ([(1, 150)], [1], 0),
    ],
)
def test_what_the_first_copy_adds_counts_once(
    copies: Sequence[tuple[int, int]], counts: Sequence[int], most: int
) -> None:
    assert copies_within(Held(90, 100, tuple(copies)), counts, 200) == most

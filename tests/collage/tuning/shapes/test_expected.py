"""What is left out at a shape, by what was measured at others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from collage.partitioner.candidate import Candidate, Plan
from collage.timing.request import PlanTiming
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.expected import Expected
from collage.tuning.shapes.samples import BoundShape, in_order
from tests.collage.tuning.shapes.stated import MODEL, A, C, shapes
from tests.partitioner.graphs import text_model

_SIZES = (1024, 4096, 16384, 65536, 262144)
_A, _C = (Plan((Candidate(MODEL.index.all_nodes, target),)) for target in (A, C))


def _bound(at: AtShape) -> BoundShape:
    size = at.bound.shape.sizes["N"]
    text = f"g (float[{size}] x) => (float[{size}] y) {{ h = Relu(x) y = Relu(h) }}"
    return replace(at.bound, model=cast(Any, text_model(text)))


def _timed(alone: Callable[[str, int], float | None]) -> list[AtShape]:
    found = shapes(
        dict.fromkeys(_SIZES, 0.2),
        lambda target, size: 10 + size / 1000 * (1 if target == str(A) else 2),
        alone,
    )
    for at in found:
        at.bound = _bound(at)
    return found


def test_both_ends_and_the_middle_come_first() -> None:
    known = [at.bound.shape for at in _timed(lambda target, size: 1.0)]
    assert in_order([known[i] for i in (3, 0, 4, 1, 2)]) == [1, 2, 4, 3, 0]


@pytest.mark.parametrize(
    ("alone", "is_left_out"),
    [
        (lambda target, size: 12 + size / 1000, True),
        (lambda target, size: 5 + size / 2000, False),  # it is faster
        (lambda target, size: 12 + size**2 / 1e6, False),  # no line fits
        (lambda target, size: None, False),  # nothing is known
    ],
)
def test_a_plan_for_one_shape_is_left_out_where_fits_say_that_it_is_slower(
    alone: Callable[[str, int], float | None], is_left_out: bool
) -> None:
    timed = _timed(alone)
    expected = Expected([timed[0], timed[2], timed[4]], timed[1].bound)
    assert expected.is_no_faster_alone(_A) == is_left_out
    assert not Expected(timed[:2], timed[1].bound).is_no_faster_alone(_A)
    assert not Expected([], timed[1].bound).is_no_faster_alone(_C)


def test_what_is_left_out_is_not_timed() -> None:
    (at,) = shapes({1024: 1.0}, lambda target, size: 10.0)
    again = AtShape(
        at.bound,
        at.sampling,
        at.exact,
        at._free,
        at._timer.__class__(1024, at._timer._any, at._timer._this, 1e-3),
        (A, C),
        1e-3,  # type: ignore[attr-defined, call-arg]
    )
    again.time(
        [("a", _A), ("c", _C)],
        lambda plan, is_alone: "it gains nothing" if is_alone and plan == _A else None,
    )
    assert [entry.timed for entry in again.dynamic] == [True, True]
    assert [entry.timed for entry in again.fixed] == [False, True]
    assert again.fixed[0].failure == "it gains nothing"
    assert [str(target) for target in again.singles()] == [str(A), str(C)]


def test_what_fails_at_any_size_is_not_tried_again() -> None:
    """One that was refused, or crashed; an error that is too large may be smaller elsewhere."""
    timed = _timed(lambda target, size: 1.0)
    entries = {str(entry.plan.targets[0]): entry for entry in timed[0].dynamic}
    entries[str(A)].timings[0] = PlanTiming(failure="it was refused", is_final=True)
    entries[str(C)].timings[0] = PlanTiming(failure="its error is too large")
    expected = Expected(timed[:1], timed[1].bound)
    assert expected.refusal(_A, False) == "at N=1024: it was refused"
    assert expected.refusal(_A, True) is None
    assert expected.refusal(_C, False) is None

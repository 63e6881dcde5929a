"""Which plans are timed at a shape however late it is, by a timer that notes what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.deadline import Deadline
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.partitioner.target import Target
from collage.shapes.space import Shape
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from collage.tuning.shapes.at_shape import AtShape, BoundShape
from tests.collage.tuning.shapes.stated import MIX, MODEL, A, B, C, StatedTimer


class _NotedTimer(StatedTimer):
    """Notes how many plans each comparison needs."""

    def __init__(self) -> None:
        super().__init__(8, lambda *_: 10.0, lambda *_: 10.0, 1e-3)
        self.needed: list[int] = []

    def time(self, plans: Sequence[TimedPlan], *args: Any, needed: int = 0, **more: Any) -> Standings:
        self.needed.append(needed)
        return super().time(plans, *args, **more)


def _at(timer: StatedTimer, targets: Sequence[Target], left_s: float) -> AtShape:
    bound = BoundShape(Shape({"N": 8}, 1.0), MODEL, NormalizedInfo(Path(), (), ()))
    return AtShape(
        bound,
        cast(Any, SimpleNamespace(threads=2)),
        cast(RegionFiles, None),
        cast(RegionFiles, SimpleNamespace()),
        timer,
        targets,
        1e-3,
        Deadline(search_s=left_s, compare_s=left_s, end_s=left_s, clock=lambda: 0.0),
    )


def _singles(*targets: Target) -> list[tuple[str, Plan]]:
    return [(str(t), Plan((Candidate(MODEL.index.all_nodes, t),))) for t in targets]


@pytest.mark.parametrize(("plans", "needed"), [([], 3), ([("found", MIX)], 4)])
def test_every_single_target_is_compiled_for_any_size_however_late(
    plans: list[tuple[str, Plan]], needed: int
) -> None:
    """A target that refuses the model says so; it is not told that there was no time."""
    timer = _NotedTimer()
    _at(timer, (A, B, C), left_s=-1.0).time([*_singles(A, B, C), *plans], needed=4)
    assert timer.needed == [needed]


def test_a_variant_that_the_user_gave_is_timed_once() -> None:
    timer = _NotedTimer()
    one = Target.parse("onnxruntime -threads=1")
    at = _at(timer, (C, one), left_s=1e9)
    at.time(_singles(C, one))
    assert len([e for e in at.dynamic if e.plan.targets == (one,)]) == 1

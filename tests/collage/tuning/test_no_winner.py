"""The error where no plan of any comparison can run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from collage.events import ignore
from collage.partitioner.errors import NoPlanError
from collage.partitioner.search.constraints import Constraints
from collage.refinement.refinement import Refinement
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import PlanTiming
from collage.timing.timed_plan import TimedPlan
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World


class FailingTimer(PlanTimer):
    """Times plans of which none keeps its tolerance."""

    def hold(self, newcomers: Sequence[TimedPlan], *_: object, **__: object) -> None:
        self.entries.extend(newcomers)
        for entry in self.entries:
            entry.timings = {0: PlanTiming(failure="its error 0.029 exceeds 0.0119")}


def test_error_lists_each_failure_where_no_plan_can_run() -> None:
    world = World(24, 3)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(2, INFINITE)
    singles = dict.fromkeys(TARGETS, 1000.0)
    timer = FailingTimer(None, None, ignore)
    finals = Refinement(world.model, [], Constraints(), timer, singles)
    with pytest.raises(NoPlanError, match=rf"single {TARGETS[0]}: its error 0\.029 exceeds 0\.0119"):
        finals.refined(world.search(costs), solution, 2)

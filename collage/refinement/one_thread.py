"""Single targets on one thread, where a call is short."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from collage.backends.contract import THREADS
from collage.backends.registry import tunable_options
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.search.fixed_plans import single_plan
from collage.timing.timed_plan import TimedPlan

# Below, what waking a second thread takes may be more than it gives. On a Xeon with two cores one thread was 1.07 to 1.65 times as
# fast on calls of 0.1 to 1.5 ms of three runtimes, and 0.62 to 0.75 times on calls of 5 to 8 ms.
_SHORT_US = 2000.0
_ONE = "1"


def on_one_thread(
    model: Model, targets: Sequence[Target], threads: int, alone_us: Mapping[Target, float]
) -> list[TimedPlan]:
    """Plans of targets that may be faster so.

    One may be the fastest that is far behind on all threads, so they are timed as whole models, and not only as changes of
    the best plan.

    Args:
        model: the normalized model.
        targets: the caller's; one that states its threads keeps them.
        threads: of one call.
        alone_us: what the whole model took on each; without those that cannot run it.
    """
    short = [target for target in targets if alone_us.get(target, math.inf) < _SHORT_US]
    able = [t for t in short if _ONE in tunable_options(t, threads).get(THREADS.name, ())]
    alone = [target.with_options(**{THREADS.name: _ONE}) for target in able]
    return [TimedPlan(single_plan(model, target), f"single {target}") for target in alone]

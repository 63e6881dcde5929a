"""Single targets other than as the caller gave them: with the model rewritten, or on one thread.

What is fastest so may be far behind as it is, so these are timed beside the single targets before the search, and not only as
changes of the best plan.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

from backends.contract import THREADS
from backends.registry import tunable_options
from collage.entry import Entry
from collage.events import Listener, ignore
from collage.rewritten import single_rewritten
from collage.strategies import single_plan
from partitioner.model import Model
from partitioner.target import Target

# Below, what waking a second thread takes may be more than it gives. On a Xeon with two cores one thread was the faster one on
# models of 0.1 to 0.9 ms, by up to 1.5 times, and the slower one on a model of 5 ms.
_SHORT_US = 2000.0
_ONE = "1"


def single_variants(
    model: Model,
    targets: Sequence[Target],
    alone_us: Mapping[Target, float],
    threads: int,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> list[Entry]:
    """Single targets whose options may make the whole model faster, those of the fastest first.

    Args:
        model: the normalised model.
        targets: the caller's; an option that is stated stays as it is.
        alone_us: what the whole model took on each; without those that cannot run it.
        threads: of one call.
        listener: is told where the model cannot be rewritten.
        cancel: stops what is done in a child.

    Raises:
        CancelledError: `cancel` was set.
    """
    # Not all may be timed where time is short.
    fastest = sorted(targets, key=lambda target: alone_us.get(target, math.inf))
    short = [target for target in fastest if alone_us.get(target, math.inf) < _SHORT_US]
    able = [t for t in short if _ONE in tunable_options(t, threads).get(THREADS.name, ())]
    alone = [target.with_options(**{THREADS.name: _ONE}) for target in able]
    return [
        *(Entry(single_plan(model, target), f"single {target}") for target in alone),
        *single_rewritten(model, fastest, threads, listener, cancel),
    ]

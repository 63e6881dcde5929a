"""This environment against what was measured before in another one that is gone.

Times of different days do not compare. Each is divided by the yardstick's time of the same build, which is a
fixed computation, and only a large change is told: other work on the machine slows the two unequally.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from collage.backends.measurement.ratio import Ratio

# Without the old environment smaller changes cannot be told from those of the machine.
LEAST_CHANGE = 1.15
_STUDENT_975 = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31}


def by_yardstick(new: Sequence[float], old: Sequence[float]) -> Ratio | None:
    """How many times longer a plan takes than it did, with its 95 % interval; None of fewer than two builds each.

    Args:
        new: of each build the plan's time over the yardstick's.
        old: the same of the earlier builds.
    """
    if len(new) < 2 or len(old) < 2:
        return None
    a, b = [math.log(value) for value in new], [math.log(value) for value in old]
    middle = statistics.fmean(a) - statistics.fmean(b)
    spread = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
    off = _STUDENT_975.get(min(len(a), len(b)) - 1, 2.26) * spread
    return Ratio(math.exp(middle), math.exp(middle - off), math.exp(middle + off))

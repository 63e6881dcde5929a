"""What comparisons of whole plans say about costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collage.partitioner.target import Target


@dataclass(frozen=True)
class Corrections:
    """Costs as they are inside running plans, at the pace at which all else was measured.

    Args:
        partition_us: microseconds of partitions, by nodes and target, inside the plans that ran.
        border_us: what every border costs more than estimated.
        single_target_us: microseconds of the whole model on each target, as these compare in turn.
    """

    partition_us: Mapping[tuple[int, Target], float] = field(default_factory=dict)
    border_us: float = 0.0
    single_target_us: Mapping[Target, float] = field(default_factory=dict)


NO_CORRECTIONS = Corrections()

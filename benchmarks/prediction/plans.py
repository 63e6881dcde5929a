"""Random coarse plans of a model, and how well their latency was predicted.

Terms: a model's *cuts* are some positions on its line of nodes where few values are live. A *stretch*
is the run of nodes between two cuts, and a *part* a stretch on a target. Plans share parts, so that a
measurement serves several plans.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.support.interleave import compare
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model

Part = tuple[int, int, str]  # from the cut, to the cut, on the target
MOST_PARTITIONS = 12
_MOST_TARGETS = 3
_NOISE_FLOOR = 0.01


@dataclass(frozen=True)
class PlanResult:
    """The predicted and the measured latency of one plan, in microseconds."""

    predicted_us: float
    measured_us: float

    @property
    def error(self) -> float:
        """The relative error of the prediction; positive when it is too high."""
        return self.predicted_us / self.measured_us - 1


def choose_cuts(model: Model) -> list[int]:
    """At most twelve stretches of about the same number of nodes."""
    laid = line(model.index, model.index.all_nodes)
    count = len(laid.order)
    offered = laid.waists if len(laid.waists) > MOST_PARTITIONS else laid.cuts
    wanted = (count * i / MOST_PARTITIONS for i in range(MOST_PARTITIONS + 1))
    return sorted({min(offered, key=lambda cut: abs(cut - position)) for position in wanted})


def draw_plans(
    stretches: int, allowed: Mapping[tuple[int, int], Sequence[str]], count: int, seed: int
) -> list[tuple[Part, ...]]:
    """Different plans of 2 to 12 partitions on 2 to 3 targets; neighbors differ in target.

    Args:
        stretches: how many the model has.
        allowed: the targets that support the nodes between two cuts.
        count: how many plans.
        seed: of the drawing.
    """
    generator = random.Random(seed)
    targets = sorted({target for names in allowed.values() for target in names})
    found: dict[tuple[Part, ...], None] = {}
    for _ in range(count * 200):
        if len(found) == count:
            break
        # Each number of partitions comes as often as any other.
        wanted = 2 + len(found) % (min(MOST_PARTITIONS, stretches) - 1)
        cuts = [0, *sorted(generator.sample(range(1, stretches), wanted - 1)), stretches]
        used = generator.sample(targets, min(len(targets), generator.choice((2, _MOST_TARGETS))))
        plan: list[Part] = []
        for start, end in itertools.pairwise(cuts):
            before = plan[-1][2] if plan else None
            names = [n for n in allowed[start, end] if n in used and n != before]
            if not names:
                break
            plan.append((start, end, generator.choice(names)))
        else:
            found[tuple(plan)] = None
    return list(found)


def median_error(outcomes: Sequence[PlanResult]) -> float:
    """The median of the errors' magnitudes."""
    return statistics.median(abs(outcome.error) for outcome in outcomes)


def kendall(predicted_us: Sequence[float], samples_us: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Kendall's τ among the pairs of plans that differ by more than noise.

    Args:
        predicted_us: per plan.
        samples_us: per plan, those of one round at the same position.

    Returns:
        The share of pairs in the predicted order less the share of those that are not, and how many
        pairs there were.
    """
    score = pairs = 0
    for i, j in itertools.combinations(range(len(predicted_us)), 2):
        ratio = compare(samples_us[i], samples_us[j], resamples=400)
        if ratio.low <= 1 + _NOISE_FLOOR and ratio.high >= 1 - _NOISE_FLOOR:
            continue
        pairs += 1
        score += 1 if (predicted_us[i] > predicted_us[j]) == (ratio.ratio > 1) else -1
    return (score / pairs if pairs else 1.0), pairs

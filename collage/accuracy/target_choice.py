"""Which targets a plan within a budget may mix, by their measurements of the whole model.

Terms: a target is *exact* when it computes the whole model as fp32 does, else *reduced*. A *rival* is
an exact target that is slower on the whole model, but faster in places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collage.accuracy.mix_partitions import mixable_pairs
from collage.cost_db.costs.row import CostRow
from collage.costs.estimates import Estimates
from collage.partitioner.target import Target

# Up to this error of the whole model (metric `max`) a target counts as exact; fp32 errs far less.
EXACT_ERROR = 5e-4
# Where rounding decides elements, fp32 errs by more, and by no more than a tolerance allows that nobody chose.
_ROUNDING_ERROR, _AS_EXACT = 1e-3, 1.01
# A target that is slower as a whole by more is hardly faster in places.
MUCH_SLOWER = 1.5
_MOST_REDUCED, _MOST_RIVALS = 3, 1
# A target that errs more than so many times the goal as a whole is left out.
_HOPELESS = 3.0
# Targets are about as exact where one errs this many times as much.
_ABOUT_AS_EXACT = 1.25
# Share of the time that a slower target must promise to save.
_WORTH_MIXING_IN = 0.05
# Borders within one runtime are cheaper, and measurements of whole models are no more precise.
_NEARLY_AS_FAST = 1.15


@dataclass(frozen=True)
class TargetChoice:
    """Targets to mix."""

    exact: tuple[Target, ...] = ()  # targets that compute exactly, fastest first
    reduced: tuple[Target, ...] = ()  # the fastest of the less exact ones, the most exact first
    # exact ones that are faster than the base in places; none where nothing is reduced, or where base
    # and reduced targets go into one partition
    rivals: tuple[Target, ...] = ()
    refused: tuple[str, ...] = ()  # why the others are left out
    # the exact target that the others are mixed with: of a reduced one's runtime where that is nearly
    # the fastest, else the fastest; None where there is none
    base: Target | None = None


def exact_limit(errors: Iterable[float]) -> float:
    """The error (metric `max`) up to which plans of one model compute it as fp32 does.

    Args:
        errors: of its plans. The least of them counts where rounding decides elements of the model's outputs.
    """
    least = min(errors, default=0.0)
    return max(EXACT_ERROR, _AS_EXACT * least) if least <= _ROUNDING_ERROR else EXACT_ERROR


def choose_targets(
    rows: Mapping[Target, CostRow | None], estimates: Estimates, goal: float = math.inf
) -> TargetChoice:
    """Choose targets to mix.

    Args:
        rows: per target the measurement of the whole model.
        estimates: profiles; targets without one cannot be cut into blocks.
        goal: the largest error (metric `max`) allowed; infinite where it is not known.
    """
    timed: list[tuple[float, Target, float]] = []
    refused = []
    for target, row in rows.items():
        if row is None:
            refused.append(f"{target} was not measured in time")
        elif row.latency_us is None:
            refused.append(f"{target} does not run the whole model: {row.reason}")
        elif estimates.times_us(target) is None:
            refused.append(f"it is not known where {target} spends its time")
        else:
            timed.append((row.latency_us, target, row.error or 0.0))
    limit = exact_limit(error for _, _, error in timed)
    exact = sorted((us, target) for us, target, error in timed if error <= limit)
    if not exact:
        return TargetChoice(refused=(*refused, "no target computes the whole model exactly"))
    fastest_us, fastest = exact[0]
    limit_us = MUCH_SLOWER * fastest_us
    inexact = sorted((us, target) for us, target, error in timed if error > limit)
    refused += [
        f"{target} takes {us / fastest_us:.1f} times as long as {fastest}"
        for us, target in inexact
        if us >= limit_us
    ]
    errors = {target: error for _, target, error in timed}
    near = [(us, target) for us, target in inexact if us < limit_us]
    nowhere = [
        t for us, t in near if us > fastest_us and _saving(estimates, [fastest], t) <= _WORTH_MIXING_IN
    ]
    refused += [f"{target} is hardly faster than {fastest} anywhere" for target in nowhere]
    worth = [target for _, target in near if target not in nowhere]
    hopeless = [t for t in worth if errors[t] > max(_HOPELESS * goal, min(errors[o] for o in worth))]
    refused += [f"{t} errs by {errors[t]:.2g} on the whole model" for t in hopeless]
    worth = [target for target in worth if target not in hopeless]
    reduced, more = tuple(sorted(worth[:_MOST_REDUCED], key=errors.__getitem__)), worth[_MOST_REDUCED:]
    refused += [f"{_MOST_REDUCED} others are faster than {target}" for target in more]
    own = {target.backend for target in reduced}
    own_exact = [t for us, t in exact if t.backend in own and us <= _NEARLY_AS_FAST * fastest_us]
    base = own_exact[0] if own_exact else fastest
    reduced, told = _one_inside(base, reduced, {t: (us, error) for us, t, error in timed}, goal)
    refused += told
    reduced, told = _favored(base, reduced, errors, estimates)
    refused += told
    promised = [
        (_saving(estimates, [base, *reduced], target), target)
        for us, target in exact
        if reduced and us < limit_us and target != base and not mixable_pairs((base, *reduced))
    ]
    rivals = [target for saving, target in sorted(promised, reverse=True) if saving > _WORTH_MIXING_IN]
    return TargetChoice(
        exact=tuple(target for _, target in exact),
        reduced=reduced,
        rivals=tuple(rivals[:_MOST_RIVALS]),
        refused=tuple(refused),
        base=base,
    )


def _favored(
    base: Target, reduced: tuple[Target, ...], errors: Mapping[Target, float], estimates: Estimates
) -> tuple[tuple[Target, ...], list[str]]:
    """Leave out reduced targets that are hardly faster anywhere than those that err about as much or less.

    One that goes into the base's partition stays, since changes to it cost less.

    Returns:
        The targets that stay, and reasons for the others.
    """
    told, kept = [], list(reduced)
    for target in reversed(reduced):  # what errs most is left out first
        others = [o for o in kept if o != target and errors[o] <= _ABOUT_AS_EXACT * errors[target]]
        if not others or mixable_pairs((base, target)):
            continue
        if _saving(estimates, [base, *others], target) <= _WORTH_MIXING_IN:
            kept.remove(target)
            named = ", ".join(map(str, others))
            told.append(f"{target} is hardly faster anywhere than {named}, with no smaller error")
    return tuple(kept), told


def _one_inside(
    base: Target,
    reduced: tuple[Target, ...],
    measured: Mapping[Target, tuple[float, float]],
    goal: float,
) -> tuple[tuple[Target, ...], list[str]]:
    """Of reduced targets that are mixable with the base keep the most promising one: two do not go into one partition.

    Args:
        measured: of the whole model, µs and error.
        goal: the largest error that is asked for.

    Returns:
        The targets that stay, and reasons for the others.
    """
    within = [t for t in reduced if mixable_pairs((base, t))]
    if len(within) < 2:
        return reduced, []

    def saved_us(target: Target) -> float:
        us, error = measured[target]
        return min(1.0, (goal / error) ** 2) * (measured[base][0] - us)

    best = max(within, key=saved_us)
    others = [target for target in within if target != best]
    told = [f"{target} promises less than {best} in one partition with {base}" for target in others]
    return tuple(target for target in reduced if target not in others), told


def _saving(estimates: Estimates, known: Sequence[Target], other: Target) -> float:
    """Share of the time that a target promises to save beside others, each node on its fastest."""
    times = [per_node for t in known if (per_node := estimates.times_us(t)) is not None]
    own = estimates.times_us(other) or {}
    best = {i: min(per_node[i] for per_node in times) for i in times[0]}
    saved = sum(max(0.0, best[i] - own[i]) for i in best)
    return saved / max(sum(best.values()), 1e-9)

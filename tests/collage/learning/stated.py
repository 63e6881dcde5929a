"""Observations of models in a world where targets have stated strengths."""

from __future__ import annotations

import random
from collections.abc import Mapping

from collage.cost_db.costs.observations import Gain, Observation
from collage.learning.features import EDITION, NAMES, nominal_us

PARTS = 12
KINDS = ("1x1", "3x3", "product")
# What each target takes for a kind, over the nominal time.
STRENGTHS: Mapping[str, Mapping[str, float]] = {
    "even": {"1x1": 1.0, "3x3": 1.0, "product": 1.0},
    "slow": {"1x1": 2.0, "3x3": 2.5, "product": 1.8},
    "mixed": {"1x1": 1.2, "3x3": 0.5, "product": 2.0},
}


def part(kind: str, size: float) -> tuple[float, ...]:
    """Features of a part with one kind of kernel."""
    known = {"nodes": 1.0, "work": size, "traffic": size - 5, "weights": size - 6, "largest": size - 6}
    return tuple({**known, f"work of {kind}": 1.0}.get(name, 0.0) for name in NAMES)


def observed(
    models: int,
    seed: int = 0,
    noise: float = 0.03,
    strengths: Mapping[str, Mapping[str, float]] = STRENGTHS,
) -> list[Observation]:
    """What every target took for some models of one kind of kernel each, and for their parts."""
    luck = random.Random(seed)
    rows = []
    for model in range(models):
        kind = KINDS[model % len(KINDS)]
        sizes = [luck.uniform(14.0, 18.0) for _ in range(PARTS)]
        for position, size in enumerate([*sizes, 20.0 + luck.random()]):
            described = part(kind, size)
            for target, strength in strengths.items():
                us = nominal_us(described) * strength[kind] * luck.lognormvariate(0.0, noise)
                rows.append(
                    Observation(
                        hardware="here",
                        target=target,
                        sub_graph=f"{model}/{position}",
                        version="1.0",
                        model=model_name(model),
                        is_whole=position == PARTS,
                        latency_us=us,
                        edition=EDITION,
                        features=described,
                    )
                )
    return rows


def model_name(model: int) -> str:
    return f"{model:064x}"


def gained(models: int, used: str, targets: str, gain: float = 0.0) -> list[Gain]:
    """What tunings of the same models gained, all with plans of one runtime."""
    return [Gain("here", model_name(i), targets, 0.05, gain, (used,)) for i in range(models)]

"""Observations of models in a world where targets have stated strengths."""

from __future__ import annotations

import random
from collections.abc import Mapping

from collage.cost_db.costs.observations import Observation
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
    """What every target took for parts of some models."""
    luck = random.Random(seed)
    rows = []
    for model in range(models):
        for position in range(PARTS):
            kind, size = luck.choice(KINDS), luck.uniform(14.0, 20.0)
            described = part(kind, size)
            for target, strength in strengths.items():
                us = nominal_us(described) * strength[kind] * luck.lognormvariate(0.0, noise)
                rows.append(
                    Observation(
                        hardware="here",
                        target=target,
                        sub_graph=f"{model}/{position}",
                        version="1.0",
                        model=f"{model:064x}",
                        is_whole=False,
                        latency_us=us,
                        edition=EDITION,
                        features=described,
                    )
                )
    return rows

"""The child of `benchmarks.error_addition`: runs random mixes and predicts their errors."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from collage.accuracy.block_search import BlockSearch
from collage.accuracy.error_model import fit_shares, mix_of
from collage.accuracy.mix_runner import BlockSearchRequest
from collage.partitioner.graph.model import Model
from collage.runtime.compiled import CompiledRegions


def observe(request: BlockSearchRequest, mixes: int) -> dict[str, Any]:
    """Run random mixes in a child; their predicted and true errors."""
    compiled = CompiledRegions(request.threads)
    trials = BlockSearch(request, Model.open(request.model), compiled)
    chance = random.Random(0)
    count = len(trials.blocks)
    chosen: dict[tuple[int, ...], float] = {}
    while len(chosen) < min(mixes, 2**count - 1):
        mix = _scattered(chance, count) if len(chosen) % 2 else _in_runs(chance, count)
        mix = tuple(t if np.isfinite(trials.alone[i, t]) else 0 for i, t in enumerate(mix))
        if sum(mix) > 1:
            chosen[mix] = trials.chosen_error(mix)
    compiled.close()
    alone = np.sqrt(trials.alone)
    tried = {mix_of(trials.blocks, mix, 2): error for mix, error in chosen.items()}
    ordered = list(tried)
    fitted = np.zeros(len(ordered))
    for half in (0, 1):
        known = {mix: tried[mix] for mix in ordered[half::2]}
        shares = fit_shares(trials.blocks, trials.alone, known, 1e-2)
        fitted[1 - half :: 2] = [
            math.sqrt(sum(shares[i, t] for i, t in enumerate(mix) if t))
            for mix in list(chosen)[1 - half :: 2]
        ]
    return {
        "alone": [float(error) for error in alone[:, 1]],
        "true": list(chosen.values()),
        "sum": [float(sum(alone[i, t] for i, t in enumerate(mix) if t)) for mix in chosen],
        "squares": [
            float(math.sqrt(sum(alone[i, t] ** 2 for i, t in enumerate(mix) if t))) for mix in chosen
        ],
        "fitted": [float(error) for error in fitted],
    }


def _scattered(chance: random.Random, count: int) -> tuple[int, ...]:
    density = chance.uniform(0.15, 0.85)
    return tuple(int(chance.random() < density) for _ in range(count))


def _in_runs(chance: random.Random, count: int) -> tuple[int, ...]:
    """Few borders, as good plans have."""
    cuts = sorted(chance.sample(range(1, count), min(chance.randint(1, 3), count - 1)))
    first = chance.randint(0, 1)
    return tuple((first + sum(i >= cut for cut in cuts)) % 2 for i in range(count))

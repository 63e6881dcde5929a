"""Predicts what parts of a model take on each target, by what parts of other models took on this hardware.

Terms: a *gap* is the logarithm of what a part takes on a target over what it takes on another one, the *base*. What a
target *may save* beside a base is what the parts take less that it runs faster, as a share of the whole model.
A *held-out* prediction is of a model whose parts the predictor did not see.

Invariant: a bound on what a target may save holds for as many of ten models as its coverage says. Of n models that
were held out in turn, the largest excess of what one really saved over what was predicted is added. A new model exceeds
that with probability 1 / (n + 1), where it is one of the same kind (conformal prediction).
Source: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World (2005).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from collage.cost_db.costs.observations import Observation
from collage.learning.features import nominal_us
from collage.partitioner.search.milp import Floats

# Of so many models a bound holds for nine of ten new ones.
ENOUGH_MODELS = 9
_FOLDS, _TREES, _LEAST_LEAF, _TRIED = 5, 40, 2, 0.5
# Of a target's error, such a share of the parts is told.
_COVERED = 0.9


@dataclass(frozen=True)
class Part:
    """A part of a model that a base target ran."""

    features: tuple[float, ...]
    base_us: float


@dataclass(frozen=True)
class TargetError:
    """How far held-out predictions of a target's parts were off."""

    target: str
    rows: int
    models: int
    median: float  # of the relative errors
    factor: float  # nine of ten parts took between the prediction divided by this and times this


class Predictor:
    """What is known of the targets of one machine.

    Args:
        rows: of this machine, of the versions of the runtimes that are used.
    """

    def __init__(self, rows: Sequence[Observation]) -> None:
        by_target: dict[str, dict[str, Observation]] = defaultdict(dict)
        for row in rows:
            by_target[row.target].setdefault(row.sub_graph, row)
        self._rows = {
            target: known
            for target, known in sorted(by_target.items())
            if len({row.model for row in known.values()}) >= ENOUGH_MODELS
        }
        self._trees: dict[str, Any] = {}
        self._held_out: dict[str, dict[str, float]] = {}
        self._excesses: dict[tuple[str, str], list[float]] = {}

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of which enough models are known."""
        return tuple(self._rows)

    def expected_us(self, target: str, features: tuple[float, ...]) -> float | None:
        """What a part may take; None for a target of which too little is known."""
        if target not in self._rows:
            return None
        return math.exp(self._predict(target, [features])[0])

    def most_saved(self, target: str, base: str, parts: Sequence[Part]) -> float | None:
        """The most that a target may save beside a base, as a share; None where too few models ran on both.

        Args:
            target: canonical text.
            base: the same of the base.
            parts: of the model, with what they take on the base.
        """
        excesses = self._excesses_of(target, base)
        if len(excesses) < ENOUGH_MODELS:
            return None
        features = [part.features for part in parts]
        gaps = self._predict(target, features) - self._predict(base, features)
        base_us = np.array([part.base_us for part in parts])
        return _saved(base_us, base_us * np.exp(gaps)) + max(excesses)

    def models_of(self, target: str, base: str) -> int:
        """How many models ran in parts on both."""
        return len(self._excesses_of(target, base))

    @cached_property
    def errors(self) -> tuple[TargetError, ...]:
        """The error of each target's held-out predictions."""
        found = []
        for target, rows in self._rows.items():
            held_out = self._held_out_of(target)
            off = [abs(held_out[part] - math.log(row.latency_us)) for part, row in rows.items()]
            found.append(
                TargetError(
                    target=target,
                    rows=len(off),
                    models=len({row.model for row in rows.values()}),
                    median=math.expm1(statistics.median(off)),
                    factor=math.exp(float(np.quantile(off, _COVERED, method="higher"))),
                )
            )
        return tuple(found)

    def _excesses_of(self, target: str, base: str) -> list[float]:
        """Of each model that ran on both by how much more the target saved than held-out predictions said."""
        if (target, base) not in self._excesses:
            self._excesses[target, base] = self._find_excesses(target, base)
        return self._excesses[target, base]

    def _find_excesses(self, target: str, base: str) -> list[float]:
        mine, other = self._rows.get(target, {}), self._rows.get(base, {})
        shared: dict[str, list[str]] = defaultdict(list)
        for part, row in mine.items():
            if part in other and not row.is_whole:
                shared[row.model].append(part)
        if len(shared) < ENOUGH_MODELS:
            return []
        expected, expected_base = self._held_out_of(target), self._held_out_of(base)
        found = []
        for parts in shared.values():
            base_us = np.array([other[part].latency_us for part in parts])
            mine_us = np.array([mine[part].latency_us for part in parts])
            gaps = np.array([expected[part] - expected_base[part] for part in parts])
            found.append(_saved(base_us, mine_us) - _saved(base_us, base_us * np.exp(gaps)))
        return found

    def _predict(self, target: str, features: Sequence[tuple[float, ...]]) -> Floats:
        """Logarithms of microseconds."""
        if target not in self._trees:
            rows = list(self._rows[target].values())
            self._trees[target] = _fit([row.features for row in rows], _logarithms(rows))
        return _predicted(self._trees[target], features)

    def _held_out_of(self, target: str) -> dict[str, float]:
        """Held-out predictions of a target's parts."""
        if target not in self._held_out:
            self._held_out[target] = _held_out(self._rows[target])
        return self._held_out[target]


def _saved(base_us: Floats, mine_us: Floats) -> float:
    """What is saved where each part runs where it is faster."""
    return float(np.maximum(base_us - mine_us, 0.0).sum() / base_us.sum())


def _held_out(rows: Mapping[str, Observation]) -> dict[str, float]:
    from sklearn.model_selection import GroupKFold

    known = list(rows.values())
    features, seen = [row.features for row in known], _logarithms(known)
    models = [row.model for row in known]
    found = np.zeros(len(known))
    for learned, unseen in GroupKFold(_FOLDS).split(features, groups=models):
        trees = _fit([features[i] for i in learned], seen[learned])
        found[unseen] = _predicted(trees, [features[i] for i in unseen])
    return dict(zip(rows, found.tolist(), strict=True))


def _logarithms(rows: Sequence[Observation]) -> Floats:
    found: Floats = np.log([row.latency_us for row in rows])
    return found


def _fit(features: Sequence[tuple[float, ...]], seen: Floats) -> Any:
    """A model of the factors on nominal times."""
    from sklearn.ensemble import ExtraTreesRegressor

    trees = ExtraTreesRegressor(
        _TREES, min_samples_leaf=_LEAST_LEAF, max_features=_TRIED, random_state=0, n_jobs=1
    )
    return trees.fit(np.array(features), seen - _nominal(features))


def _predicted(trees: Any, features: Sequence[tuple[float, ...]]) -> Floats:
    """Logarithms of microseconds."""
    found: Floats = trees.predict(np.array(features)) + _nominal(features)
    return found


def _nominal(features: Sequence[tuple[float, ...]]) -> Floats:
    found: Floats = np.log([nominal_us(each) for each in features])
    return found

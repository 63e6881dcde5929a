"""Predicts what parts of a model, or all of it, take on each target, by what other models took on this hardware.

Terms: a *ratio* is what a whole model takes on a target over what it takes on another one, the *base*. A *held-out*
prediction is of a model that the predictor did not see.

Invariant: a bound on a ratio holds for nine of ten models at the least. Of n models that were held out in turn, the
largest fall of a ratio below its prediction counts. A new model exceeds that with probability 1 / (n + 1), where it is
one of the same kind (conformal prediction).
Source: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World (2005).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        self._falls: dict[tuple[str, str], list[float]] = {}

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of which enough models are known."""
        return tuple(self._rows)

    def expected_us(self, target: str, features: tuple[float, ...]) -> float | None:
        """What a part may take; None for a target of which too little is known."""
        if target not in self._rows:
            return None
        return math.exp(self._predict(target, [features])[0])

    def least_ratio(self, target: str, base: str, features: tuple[float, ...]) -> float | None:
        """What a whole model takes on a target over a base at the least; None where too few models ran on both."""
        falls = self._falls_of(target, base)
        if len(falls) < ENOUGH_MODELS:
            return None
        expected = self._predict(target, [features])[0] - self._predict(base, [features])[0]
        return math.exp(float(expected) - max(falls))

    @property
    def checked(self) -> tuple[str, ...]:
        """The targets of which held-out predictions were needed so far; others cost seconds."""
        return tuple(self._held_out)

    def errors(self, targets: Sequence[str]) -> list[TargetError]:
        """The error of some targets' held-out predictions."""
        found = []
        for target in targets:
            rows, held_out = self._rows[target], self._held_out_of(target)
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
        return found

    def _falls_of(self, target: str, base: str) -> list[float]:
        """Of each model that ran on both by how much the logarithm of its ratio was below the held-out prediction."""
        if (target, base) not in self._falls:
            self._falls[target, base] = self._find_falls(target, base)
        return self._falls[target, base]

    def _find_falls(self, target: str, base: str) -> list[float]:
        mine, other = self._rows.get(target, {}), self._rows.get(base, {})
        shared = [name for name, row in mine.items() if row.is_whole and name in other]
        if len(shared) < ENOUGH_MODELS:
            return []
        expected, expected_base = self._held_out_of(target), self._held_out_of(base)
        return [
            expected[name]
            - expected_base[name]
            - math.log(mine[name].latency_us / other[name].latency_us)
            for name in shared
        ]

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

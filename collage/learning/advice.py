"""What a run is advised to measure first, and what not at all, by what the database has seen on this hardware.

Invariants: a database that has seen too few models advises nothing, so nothing changes. Advice orders and leaves out;
what a run returns is measured all the same. A target is left out where it is slower than it was on any model whose plan
used it. Of n known models and a new one, each may be the one with the slowest target that is used; so the new one is
with probability 1 / (n + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from collage.cost_db.costs.observations import Gain, Observation, ObservationStore
from collage.cost_db.database import CostDatabase
from collage.extras import learner_is_installed
from collage.learning.features import EDITION, features
from collage.learning.observe import Named
from collage.learning.predictor import ENOUGH_MODELS, Predictor
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target

WORTH = 0.01
"""What saves less of a model's time is not worth a measurement."""
# A predictor is made anew once there are so many times the rows.
_GROWN = 1.1
# A setting that was never tried counts as so much better than it is known to be.
_CURIOSITY = 0.02


@dataclass(frozen=True)
class Seen:
    """What is known of a machine.

    Args:
        predictor: of parts; None where too few models were seen, or nothing that learns is installed.
        wholes_us: by target's text what whole models took, by model.
    """

    predictor: Predictor | None
    wholes_us: Mapping[str, Mapping[str, float]]


_seen: dict[tuple[str, str, tuple[str, ...]], tuple[int, Seen]] = {}


@dataclass(frozen=True)
class Advice:
    """Advice for one model.

    Args:
        index: the model.
        name_of: the canonical text of a target.
        predictor: what is known; None where too few models were seen, or nothing that learns is installed.
        wholes_us: by target's text what whole models took in turn, by model.
        gains: of other models with the same targets.
        names: the texts of the run's targets.
    """

    index: GraphIndex | None = None
    name_of: Callable[[Target], str] = str
    predictor: Predictor | None = None
    wholes_us: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gains: Sequence[Gain] = ()
    names: Collection[str] = ()

    def in_order(self, targets: Sequence[Target]) -> list[Target]:
        """Targets, first those that are expected to run the whole model fastest; unknown ones come last."""
        if self.predictor is None or self.index is None:
            return list(targets)
        described = features(self.index, self.index.all_nodes)
        expected = {t: self.predictor.expected_us(self.name_of(t), described) for t in targets}
        return sorted(targets, key=lambda t: math.inf if (us := expected[t]) is None else us)

    def told(self) -> list[dict[str, Any]] | None:
        """For the report: the error of the predictions that something rests on; None where nothing is predicted."""
        if self.predictor is None:
            return None
        return [asdict(error) for error in self.predictor.errors(self.predictor.checked)]

    def against(self, target: Target, base: Target) -> str | None:
        """Why a target need not run at all; None where it may be of use.

        Args:
            target: that was not measured yet.
            base: the fastest that was.
        """
        if self.predictor is None or self.index is None:
            return None
        described = features(self.index, self.index.all_nodes)
        least = self.predictor.least_ratio(self.name_of(target), self.name_of(base), described)
        if least is None:
            return None
        records = self._records(target)
        slowest_used = max((ratio for ratio, used in records if used), default=0.0)
        if len(records) < ENOUGH_MODELS or least <= max(1.0, slowest_used):
            return None
        return (
            f"left out: it takes at least {least:.2g} times as long as {base} by what other models took, and of "
            f"{len(records)} plans none used it where it was so slow (docs/learning.md)"
        )

    def _records(self, target: Target) -> list[tuple[float, bool]]:
        """Of each model what a target took over the fastest of the others, and whether the plan used its runtime."""
        mine = self.wholes_us.get(self.name_of(target), {})
        others = [us for name, us in self.wholes_us.items() if name in self.rivals_of(target)]
        found = []
        for gain in self.gains:
            rivals = [us[gain.model] for us in others if gain.model in us]
            if gain.model in mine and rivals:
                found.append((mine[gain.model] / min(rivals), target.backend in gain.used))
        return found

    def rivals_of(self, target: Target) -> set[str]:
        """The texts of the run's targets of other runtimes."""
        return {name for name in self.names if name.partition(" ")[0] != target.backend}

    def may_win(self, target: Target, variant: Target) -> bool:
        """False for a variant that was no faster than its target on any of enough other models."""
        ratios = self._ratios(target, variant)
        return len(ratios) < ENOUGH_MODELS or min(ratios) < 1 - WORTH

    def most_promising(self, pairs: Sequence[tuple[Target, Target]]) -> list[tuple[Target, Target]]:
        """Targets with their variants that may win, first those that did best; rarely tried ones count as better."""

        def rank(pair: tuple[Target, Target]) -> float:
            logs = [math.log(ratio) for ratio in self._ratios(*pair)]
            mean = sum(logs) / len(logs) if logs else 0.0
            return mean - _CURIOSITY / math.sqrt(len(logs) + 1)

        return sorted((pair for pair in pairs if self.may_win(*pair)), key=rank)

    def _ratios(self, target: Target, variant: Target) -> list[float]:
        """What other models took on a variant over what they took on its target."""
        base = self.wholes_us.get(self.name_of(target), {})
        mine = self.wholes_us.get(self.name_of(variant), {})
        return [us / base[model] for model, us in mine.items() if model in base]

    def against_search(self, promised: float) -> str | None:
        """Why a search for mixes cannot pay; None where it may.

        Args:
            promised: what the best target for each part would save.
        """
        searched = [(max(g.promised, WORTH), g.gained) for g in self.gains if g.promised is not None]
        if len(searched) < ENOUGH_MODELS:
            return None
        kept = [gained / before for before, gained in searched]
        most = max(promised, WORTH) * max(kept)
        # Nobody knows what more than was ever promised is worth.
        if most >= WORTH or promised > max(before for before, _ in searched):
            return None
        return (
            f"ended early: the best target for each part promises {promised:.1%}, and of that {len(kept)} searches of "
            f"other models kept at most {max(kept):.0%}"
        )


NO_ADVICE = Advice()


def advice_for(
    database: CostDatabase, index: GraphIndex, named: Named, name_of: Callable[[Target], str]
) -> Advice:
    """What the database advises for a model.

    Args:
        database: of the team.
        index: the model.
        named: how the targets of the run are written.
        name_of: the canonical text of a target.
    """
    store = ObservationStore(database.connections)
    others = [g for g in store.gains(named.hardware, of_targets(named)) if g.model != named.model]
    seen = seen_of(store, database.connections.url, named)
    return Advice(
        index=index,
        name_of=name_of,
        predictor=seen.predictor,
        wholes_us=seen.wholes_us,
        gains=others,
        names=tuple(named.texts.values()),
    )


def of_targets(named: Named) -> str:
    """The targets of a run as one text."""
    return ", ".join(sorted(named.texts.values()))


def seen_of(store: ObservationStore, url: str, named: Named) -> Seen:
    """What is known of a machine with these versions of the runtimes; kept until there are clearly more rows."""
    versions = {f"{t.backend} {version}" for t, version in named.versions.items()}
    key = (url, named.hardware, tuple(sorted(versions)))
    count = store.count(named.hardware, EDITION)
    known = _seen.get(key)
    if known is None or not known[0] <= count <= known[0] * _GROWN:
        rows = store.newest(named.hardware, EDITION)
        rows = tuple(r for r in rows if f"{r.target.partition(' ')[0]} {r.version}" in versions)
        known = _seen[key] = count, _learn(rows)
    return known[1]


def _learn(rows: Sequence[Observation]) -> Seen:
    wholes_us: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.is_whole:
            wholes_us.setdefault(row.target, {})[row.model] = row.latency_us
    predictor = Predictor(rows) if learner_is_installed() else None
    return Seen(predictor if predictor is not None and predictor.targets else None, wholes_us)

"""What a run is advised to measure first, and what not at all, by what the database has seen on this hardware.

Invariants: a database that has seen too few models advises nothing, so nothing changes. Advice orders and leaves out;
what a run returns is measured all the same. Something is left out only where it cannot save `WORTH` with the coverage
that `collage.learning.predictor` states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from collage.cost_db.costs.observations import Observation, ObservationStore
from collage.cost_db.database import CostDatabase
from collage.extras import learner_is_installed
from collage.learning.features import EDITION, features
from collage.learning.observe import Named
from collage.learning.parts import parts_of
from collage.learning.predictor import ENOUGH_MODELS, Part, Predictor
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
        wholes_us: by target's text what whole models took, by fingerprint.
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
        wholes_us: by target's text what whole models took in turn, by fingerprint.
        gains: of searches among the same targets, what each gained beyond what it promised.
    """

    index: GraphIndex | None = None
    name_of: Callable[[Target], str] = str
    predictor: Predictor | None = None
    wholes_us: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gains: Sequence[float] = ()

    def in_order(self, targets: Sequence[Target]) -> list[Target]:
        """Targets, first those that are expected to run the whole model fastest; unknown ones come last."""
        if self.predictor is None or self.index is None:
            return list(targets)
        described = features(self.index, self.index.all_nodes)
        expected = {t: self.predictor.expected_us(self.name_of(t), described) for t in targets}
        return sorted(targets, key=lambda t: math.inf if (us := expected[t]) is None else us)

    def told(self) -> list[dict[str, Any]] | None:
        """For the report: the error of each target's predictions; None where nothing is predicted."""
        if self.predictor is None:
            return None
        return [asdict(error) for error in self.predictor.errors]

    def against(self, target: Target, base: Target, times_us: Mapping[int, float]) -> str | None:
        """Why a target need not run at all; None where it may save something.

        Args:
            target: that was not measured yet.
            base: that was.
            times_us: what each node takes there.
        """
        if self.predictor is None or self.index is None:
            return None
        parts = [
            Part(
                features(self.index, nodes),
                sum(us for node, us in times_us.items() if nodes >> node & 1),
            )
            for nodes in parts_of(self.index, times_us)
        ]
        names = self.name_of(target), self.name_of(base)
        saved = self.predictor.most_saved(*names, parts)
        if saved is None or saved >= WORTH:
            return None
        count = self.predictor.models_of(*names)
        return (
            f"left out: by {count} other models it saves at most {max(saved, 0.0):.1%} beside {base} "
            "(docs/learning.md)"
        )

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
        if len(self.gains) < ENOUGH_MODELS:
            return None
        most = promised + max(self.gains)
        if most >= WORTH:
            return None
        return (
            f"ended early: the best target for each part promises {promised:.1%}, and by {len(self.gains)} other models "
            f"a search gains less than {WORTH:.0%} then"
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
        gains=[gain.gained - gain.promised for gain in others],
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
            wholes_us.setdefault(row.target, {})[row.sub_graph] = row.latency_us
    predictor = Predictor(rows) if learner_is_installed() else None
    return Seen(predictor if predictor is not None and predictor.targets else None, wholes_us)

"""What a run is advised to measure first, and what not at all, by what the database has seen on this hardware.

Invariants: a database that has seen too few models advises nothing, so nothing changes. Advice orders and leaves out;
what a run returns is measured all the same. Something is left out only where it cannot save `WORTH` with the coverage
that `collage.learning.predictor` states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collage.cost_db.costs.observations import ObservationStore
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
_predictors: dict[tuple[str, str, tuple[str, ...]], tuple[int, Predictor]] = {}


@dataclass(frozen=True)
class Advice:
    """Advice for one model.

    Args:
        index: the model.
        name_of: the canonical text of a target.
        predictor: what is known; None where too few models were seen, or nothing that learns is installed.
        gains: of searches among the same targets, what each gained beyond what it promised.
    """

    index: GraphIndex | None = None
    name_of: Callable[[Target], str] = str
    predictor: Predictor | None = None
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
    return Advice(
        index=index,
        name_of=name_of,
        predictor=predictor_of(store, database.connections.url, named),
        gains=[gain.gained - gain.promised for gain in others],
    )


def of_targets(named: Named) -> str:
    """The targets of a run as one text."""
    return ", ".join(sorted(named.texts.values()))


def predictor_of(store: ObservationStore, url: str, named: Named) -> Predictor | None:
    """The predictor of a machine; None where none of the targets ran on enough models."""
    if not learner_is_installed():
        return None
    versions = {f"{t.backend} {version}" for t, version in named.versions.items()}
    key = (url, named.hardware, tuple(sorted(versions)))
    count = store.count(named.hardware, EDITION)
    fitted = _predictors.get(key)
    if fitted is None or not fitted[0] <= count <= fitted[0] * _GROWN:
        rows = store.newest(named.hardware, EDITION)
        rows = tuple(r for r in rows if f"{r.target.partition(' ')[0]} {r.version}" in versions)
        fitted = _predictors[key] = count, Predictor(rows)
    return fitted[1] if fitted[1].targets else None

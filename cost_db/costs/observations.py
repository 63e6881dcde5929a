"""What tunings saw of parts of models, and what searches gained, for those who learn from it.

Terms: an *observation* is what a part took on a target, at the pace of the other targets of its run. A *gain* says
what a search promised by profiles, what its plan gained, and which runtimes that uses.

Invariant: the newest observation of a part on a target takes the place of an older one, so a model that is tuned again
and again counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

import sqlalchemy as sa

from collage.cost_db.connections import Connections
from collage.cost_db.costs.row import now
from collage.cost_db.costs.row_mapping import on_conflict
from collage.cost_db.tables import gains, observations

# Older ones are not read: a fit must stay cheap.
MOST_READ = 4_000
_BATCH = 50


@dataclass(frozen=True)
class Observation:
    """What one part of a model, or all of it, took on one target."""

    hardware: str  # fingerprint of the machine
    target: str  # canonical text
    sub_graph: str  # fingerprint of the part
    version: str  # of the runtime
    model: str  # SHA-256 of the normalized model
    is_whole: bool  # the part is the whole model
    latency_us: float
    edition: int  # what the features mean
    features: tuple[float, ...]
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True)
class Gain:
    """What one tuning promised and gained, as shares of the best single target's time."""

    hardware: str
    model: str
    targets: str  # of the run, as one text
    promised: (
        float | None
    )  # what the best target for each part would save by profiles; None without a search
    gained: float  # what the plan that was returned saved
    used: tuple[str, ...]  # backends in it
    created_at: datetime = field(default_factory=now)


class ObservationStore:
    """Observations and gains of a database. `CostDatabase.forget` deletes them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def keep(self, seen: Sequence[Observation]) -> None:
        """Store observations in place of older ones of the same parts and targets."""
        # Repeated blocks are one part. Sorted, so that two writers lock in one order.
        by_key = {(each.hardware, each.target, each.sub_graph): each for each in seen}
        chosen = [by_key[key] for key in sorted(by_key)]
        values = [{**asdict(each), "features": list(each.features)} for each in chosen]

        def write(connection: sa.Connection) -> None:
            for begin in range(0, len(values), _BATCH):
                insert = on_conflict(connection, observations).values(values[begin : begin + _BATCH])
                new = {c.name: insert.excluded[c.name] for c in observations.c if not c.primary_key}
                keys = list(observations.primary_key.columns)
                connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=new))

        if values:
            self._connections.write(write)

    def count(self, hardware: str, edition: int) -> int:
        """How many observations of a machine there are."""
        chosen = (observations.c.hardware == hardware) & (observations.c.edition == edition)
        statement = sa.select(sa.func.count()).select_from(observations).where(chosen)
        return int(
            self._connections.read(lambda connection: connection.execute(statement).scalar_one())
        )

    def newest(self, hardware: str, edition: int) -> tuple[Observation, ...]:
        """The newest observations of a machine, the newest first."""
        chosen = (observations.c.hardware == hardware) & (observations.c.edition == edition)
        order = (observations.c.created_at.desc(), observations.c.target, observations.c.sub_graph)
        statement = sa.select(observations).where(chosen).order_by(*order).limit(MOST_READ)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return tuple(Observation(**{**row._mapping, "features": tuple(row.features)}) for row in rows)

    def keep_gain(self, gain: Gain) -> None:
        """Store a gain in place of an older one of the same model and targets."""

        def write(connection: sa.Connection) -> None:
            values = {**asdict(gain), "used": list(gain.used)}
            insert = on_conflict(connection, gains).values(values)
            keys = list(gains.primary_key.columns)
            connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=values))

        self._connections.write(write)

    def gains(self, hardware: str, targets: str) -> tuple[Gain, ...]:
        """What searches among these targets promised and gained on a machine."""
        return tuple(gain for gain in self.every_gain(hardware) if gain.targets == targets)

    def every_gain(self, hardware: str) -> tuple[Gain, ...]:
        """What all searches promised and gained on a machine."""
        chosen = gains.c.hardware == hardware
        statement = sa.select(gains).where(chosen).order_by(gains.c.model, gains.c.targets)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return tuple(Gain(**{**row._mapping, "used": tuple(row.used)}) for row in rows)

"""Results of tunings, so that the same tuning finds them at once.

Terms: a *tuning record* is a plan and its report, under a digest of all that the result may depend on,
which the caller computes. Its time limit says whether a longer search is worth it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs.row import now
from collage.cost_db.costs.row_mapping import on_conflict
from collage.cost_db.database import CostDatabase
from collage.cost_db.tables import tunings


@dataclass(frozen=True)
class TuningRecord:
    """What one tuning found."""

    digest: str  # SHA-256 of what it depends on
    hardware: str  # fingerprint of the machine that measured
    limit_s: float  # seconds after which it looked for nothing better
    plan: str  # as text (`collage.partitioner.emit.plan_json`)
    report: Mapping[str, Any]  # JSON-ready
    created_at: datetime = field(default_factory=now)  # when it was found


class TuningStore:
    """Tuning records of a database. `CostDatabase.forget` deletes them."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def find(self, digest: str) -> TuningRecord | None:
        """The record of a tuning, or None."""
        statement = sa.select(tunings).where(tunings.c.digest == digest)
        found = self._connections.read(lambda connection: connection.execute(statement).first())
        return None if found is None else TuningRecord(**found._mapping)

    def keep(self, record: TuningRecord) -> None:
        """Store a record in place of an older one."""

        def write(connection: sa.Connection) -> None:
            values = asdict(record)
            insert = on_conflict(connection, tunings).values(values)
            connection.execute(
                insert.on_conflict_do_update(index_elements=[tunings.c.digest], set_=values)
            )

        self._connections.write(write)

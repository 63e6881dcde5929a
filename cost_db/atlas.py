"""A summary of costs: which target is fast at what, on which hardware.

Terms: a *class* is operators × shapes × data type, as `RegionFacts` says. A *cell* is a class on one hardware
and one target: the times of its regions over those of the fastest target there. Regions that one target alone
ran say nothing and do not count. Of several versions of a runtime the newest measurement counts.

Invariant: cells are what the counted costs say (`collage.cost_db.costs.summary`). Costs that are stored are
counted at once. Those of a database from before the summary, and of one of which some were forgotten, are
counted some at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs import summary
from collage.cost_db.costs.row_mapping import insert_new
from collage.cost_db.costs.summary import MOST_MODELS, MOST_NODES, UNKNOWN
from collage.cost_db.database import CostDatabase
from collage.cost_db.tables import atlas_cells, atlas_state, costs, hardware, regions

__all__ = ["MOST_MODELS", "MOST_NODES", "UNKNOWN", "AtlasStore", "Cell", "RegionFacts"]

_COUNTED_AT_ONCE = 20_000


@dataclass(frozen=True)
class RegionFacts:
    """What a sub-graph is, for people."""

    sub_graph: str  # its fingerprint
    kind: str  # its operators
    shape_class: str
    dtype: str


@dataclass(frozen=True)
class Cell:
    """How a target does on a class of regions."""

    hardware: str
    kind: str
    shape_class: str
    dtype: str
    target: str
    regions: int  # how many were measured on this target and another one
    models: int  # from how many models, `MOST_MODELS` at the most
    fastest: int  # on how many of them it was the fastest
    log_sum: float  # of the logarithms of its times over the fastest's
    log_square_sum: float

    @property
    def ratio(self) -> float:
        """The geometric mean of its times over the fastest target's."""
        return math.exp(self.log_sum / self.regions)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of that; None of one region."""
        if self.regions < 2:
            return None
        mean = self.log_sum / self.regions
        variance = max(0.0, self.log_square_sum - self.regions * mean**2) / (self.regions - 1)
        off = 1.96 * math.sqrt(variance / self.regions)
        return math.exp(mean - off), math.exp(mean + off)


@dataclass(frozen=True)
class Summary:
    """All cells, and what they rest on."""

    cells: tuple[Cell, ...]
    known_until: datetime | None  # the time of the newest cost; None where there is none
    is_whole: bool  # False while costs are still being counted


class AtlasStore:
    """The summary of a database's costs."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def describe(self, facts: Iterable[RegionFacts]) -> None:
        """Store what sub-graphs are; known ones stay."""
        values = sorted((asdict(fact) for fact in facts), key=lambda each: each["sub_graph"])

        def write(connection: sa.Connection) -> None:
            with summary.counted(connection, [each["sub_graph"] for each in values]):
                insert_new(connection, regions, values)

        if values:
            self._connections.write(write)

    def machines(self) -> dict[str, Mapping[str, Any]]:
        """What hardware fingerprints stand for."""
        statement = sa.select(hardware.c.fingerprint, hardware.c.description)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return {row.fingerprint: row.description for row in rows}

    def summary(self) -> Summary:
        """What is counted so far."""
        statement = sa.select(atlas_cells).order_by(*atlas_cells.primary_key.columns)
        newest = sa.select(sa.func.max(costs.c.created_at))

        def read(connection: sa.Connection) -> Summary:
            rows = connection.execute(statement).all()
            known_until = connection.execute(newest).scalar()
            is_whole = bool(connection.execute(sa.select(atlas_state.c.is_whole)).scalar())
            return Summary(tuple(_cell(row) for row in rows), known_until, is_whole)

        return self._connections.read(read)

    def count_all(self, until: Callable[[], bool] = lambda: False) -> None:
        """Count costs that are not counted yet, some in each transaction, so that nobody waits for long.

        Args:
            until: asked after each; True ends it, and the next call goes on from there.
        """

        def write(connection: sa.Connection) -> bool:
            summary.lock(connection)
            return summary.count_more(connection, _COUNTED_AT_ONCE)

        if self._is_whole():
            return
        while self._connections.write(write) and not until():
            pass

    def forget(self) -> None:
        """Begin the summary anew; `count_all` makes it."""

        def write(connection: sa.Connection) -> None:
            summary.lock(connection)
            summary.forget_all(connection)

        self._connections.write(write)

    def _is_whole(self) -> bool:
        statement = sa.select(atlas_state.c.is_whole)
        return bool(self._connections.read(lambda connection: connection.execute(statement).scalar()))


def _cell(row: sa.Row[Any]) -> Cell:
    return Cell(**{**row._mapping, "models": max(1, len(row.models))})

"""A summary of costs: which target is fast at what, on which hardware.

Terms: a *class* is operators × shapes × data type, as `RegionFacts` says. A *cell* is a class on one hardware
and one target: the times of its regions over those of the fastest target there. Regions that one target alone
ran say nothing and do not count. Of several versions of a runtime the newest measurement counts.

Invariants: cells are a summary that costs alone decide. It is made anew when it is read and costs are newer;
that of a large database at most once an hour. Forgetting and importing costs make it anew at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs.row import now
from collage.cost_db.costs.row_mapping import on_conflict
from collage.cost_db.database import CostDatabase
from collage.cost_db.tables import atlas_cells, atlas_state, costs, hardware, regions

# Regions of more nodes are parts of models, and no operators.
MOST_NODES = 8
UNKNOWN = "unknown"
_STATE = "cells"
_BATCH, _FETCHED = 1000, 10_000
# The summary of more costs takes seconds to make, so it may be up to an hour old.
_MANY, _YOUNG = 50_000, timedelta(hours=1)


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
    models: int  # from how many models
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


@dataclass
class _Sum:
    regions: int = 0
    fastest: int = 0
    log_sum: float = 0.0
    log_square_sum: float = 0.0
    models: set[str] = field(default_factory=set)


class AtlasStore:
    """The summary of a database's costs."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def describe(self, facts: Iterable[RegionFacts]) -> None:
        """Store what sub-graphs are; known ones stay."""
        values = [asdict(fact) for fact in facts]

        def write(connection: sa.Connection) -> None:
            insert = on_conflict(connection, regions).values(values)
            connection.execute(insert.on_conflict_do_nothing())

        if values:
            self._connections.write(write)

    def machines(self) -> dict[str, Mapping[str, Any]]:
        """What hardware fingerprints stand for."""
        statement = sa.select(hardware.c.fingerprint, hardware.c.description)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return {row.fingerprint: row.description for row in rows}

    def cells(self, fresh: bool = False) -> tuple[list[Cell], datetime | None]:
        """Every cell, and until when the summary knows the costs; None where there are no costs.

        Args:
            fresh: bring the summary of a large database up to date however young it is.
        """
        self.refresh(fresh)
        statement = sa.select(atlas_cells).order_by(*atlas_cells.primary_key.columns)

        def read(connection: sa.Connection) -> tuple[list[Cell], datetime | None]:
            rows = connection.execute(statement).all()
            state = connection.execute(sa.select(atlas_state.c.known_until)).scalar()
            return [Cell(**row._mapping) for row in rows], state

        return self._connections.read(read)

    def refresh(self, fresh: bool = False) -> bool:
        """Make the summary anew where costs are newer; False where it stayed.

        Args:
            fresh: also that of a large database which is younger than an hour.
        """
        found = self._connections.read(lambda connection: _news(connection, fresh))
        if found is None:
            return False
        self._connections.write(lambda connection: _keep(connection, *found))
        return True


def _news(connection: sa.Connection, fresh: bool) -> tuple[datetime | None, list[Cell]] | None:
    """The newest cost's time and the cells; None where the summary may stay."""
    newest = connection.execute(sa.select(sa.func.max(costs.c.created_at))).scalar()
    state = connection.execute(sa.select(atlas_state)).first()
    if state is not None and newest == state.known_until:
        return None
    if newest is None:
        has_cells = connection.execute(sa.select(atlas_cells.c.kind).limit(1)).first()
        return (None, []) if has_cells else None
    if state is not None and not fresh and now() - state.made_at < _YOUNG:
        some = sa.select(costs.c.digest).limit(_MANY + 1).subquery()
        if connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one() > _MANY:
            return None
    return newest, _cells(_points(connection), _classes(connection))


def _keep(connection: sa.Connection, newest: datetime | None, cells: list[Cell]) -> None:
    """Replace the summary; two that do so at once write the same."""
    connection.execute(sa.delete(atlas_cells))
    insert = on_conflict(connection, atlas_cells).on_conflict_do_nothing()
    for begin in range(0, len(cells), _BATCH):
        connection.execute(insert, [asdict(cell) for cell in cells[begin : begin + _BATCH]])
    connection.execute(sa.delete(atlas_state))
    if newest is not None:
        values = {"name": _STATE, "known_until": newest, "made_at": now()}
        connection.execute(sa.insert(atlas_state).values(values))


def _points(connection: sa.Connection) -> Iterator[Any]:
    """Measured regions of few nodes; through the driver itself, since there may be a million."""
    columns = "hardware, protocol, sub_graph, target, latency_us, model_sha256, op_types, created_at"
    condition = f"outcome = 'measured' AND node_count <= {MOST_NODES}"
    return _rows(connection, f"SELECT {columns} FROM costs WHERE {condition}")


def _classes(connection: sa.Connection) -> dict[str, tuple[str, str, str]]:
    """The class of each sub-graph that was described."""
    found = _rows(connection, "SELECT sub_graph, kind, shape_class, dtype FROM regions")
    return {sub_graph: (kind, shape, dtype) for sub_graph, kind, shape, dtype in found}


def _rows(connection: sa.Connection, statement: str) -> Iterator[Any]:
    cursor = connection.connection.cursor()
    cursor.execute(statement)
    while batch := cursor.fetchmany(_FETCHED):
        yield from batch
    cursor.close()


def _cells(points: Iterable[Any], classes: Mapping[str, tuple[str, str, str]]) -> list[Cell]:
    """The cells of all points."""
    groups: dict[tuple[str, str, str], dict[str, tuple[Any, float]]] = {}
    about: dict[tuple[str, str, str], tuple[str | None, str]] = {}
    for machine, protocol, sub_graph, target, us, model, op_types, at in points:
        key = (machine, protocol, sub_graph)
        group = groups.get(key)
        if group is None:
            groups[key] = {target: (at, us)}
            about[key] = (model, op_types)
        elif target not in group or group[target][0] < at:  # a newer version takes an older one's place
            group[target] = (at, us)
    sums: dict[tuple[str, str, str, str, str], _Sum] = {}
    for key, group in groups.items():
        if len(group) < 2:
            continue
        best = min(us for _, us in group.values())
        model, op_types = about[key]
        own_class = classes.get(key[2]) or (op_types, UNKNOWN, UNKNOWN)
        for target, (_, us) in group.items():
            place = (key[0], *own_class, target)
            own = sums.get(place)
            if own is None:
                own = sums[place] = _Sum()
            log = math.log(us / best)
            own.regions += 1
            own.fastest += us == best
            own.log_sum += log
            own.log_square_sum += log * log
            if model is not None:
                own.models.add(model)
    return [
        Cell(*place, own.regions, max(1, len(own.models)), own.fastest, own.log_sum, own.log_square_sum)
        for place, own in sums.items()
    ]

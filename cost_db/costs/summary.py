"""The summary of costs by class, which grows with them (`collage.cost_db.atlas` says what it means).

Terms: a *place* is a class on one hardware and one target. Its *share* is what some regions add to it.

Invariants: only sub-graphs up to `counted_to`, in the order of their text, are counted, or all where
`is_whole`. Whoever changes costs or classes of sub-graphs does so inside `counted`, which adds the change
of their shares in the same transaction. So the summary is what the counted costs say, at any time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from collage.cost_db.tables import atlas_cells, atlas_state, costs, regions

# Regions of more nodes are parts of models, and no operators.
MOST_NODES = 8
UNKNOWN = "unknown"
MOST_MODELS = 100
"""So many different models of a place are told apart."""
_STATE = "cells"
_BATCH = 500  # engines limit how many values one statement may carry
_NAME_CHARACTERS = 12

Place = tuple[str, str, str, str, str]


@dataclass
class Share:
    """What some regions add to a place."""

    regions: int = 0
    fastest: int = 0
    log_sum: float = 0.0
    log_square_sum: float = 0.0
    models: set[str] = field(default_factory=set)

    def add(self, other: Share, sign: int = 1) -> None:
        """Add another share, or take it away; models are only added."""
        self.regions += sign * other.regions
        self.fastest += sign * other.fastest
        self.log_sum += sign * other.log_sum
        self.log_square_sum += sign * other.log_square_sum
        if sign > 0:
            self.models |= other.models


Shares = dict[Place, Share]


@contextlib.contextmanager
def counted(connection: sa.Connection, sub_graphs: Iterable[str]) -> Iterator[None]:
    """Change costs or classes of these sub-graphs inside the block, and the summary follows."""
    lock(connection)
    state = connection.execute(sa.select(atlas_state)).first()
    wanted = sorted(set(sub_graphs)) if state is not None else []
    if state is not None and not state.is_whole:
        wanted = _up_to(connection, wanted, state.counted_to)
    before = _shares(connection, wanted)
    yield
    change = _shares(connection, wanted)
    for place, share in before.items():
        change.setdefault(place, Share()).add(share, -1)
    _apply(connection, change)


def lock(connection: sa.Connection) -> None:
    """Let no other transaction change the summary until the end of this one; SQLite has one writer anyhow."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('collage atlas'))"))


def forget_all(connection: sa.Connection) -> None:
    """Begin anew: nothing is counted."""
    connection.execute(sa.delete(atlas_cells))
    connection.execute(sa.delete(atlas_state))
    is_empty = connection.execute(sa.select(costs.c.digest).limit(1)).first() is None
    values = {"name": _STATE, "counted_to": "", "is_whole": is_empty}
    connection.execute(sa.insert(atlas_state).values(values))


def count_more(connection: sa.Connection, limit: int) -> bool:
    """Count the next sub-graphs, about so many costs; True where there are more.

    The caller has the lock.
    """
    state = connection.execute(sa.select(atlas_state)).first()
    if state is None:
        forget_all(connection)
        state = connection.execute(sa.select(atlas_state)).one()
    if state.is_whole:
        return False
    beyond = costs.c.sub_graph > state.counted_to
    following = sa.select(costs.c.sub_graph).where(beyond).order_by(costs.c.sub_graph).limit(limit)
    found = connection.execute(following).scalars().all()
    if found:
        chosen = sa.and_(beyond, costs.c.sub_graph <= found[-1])
        _apply(
            connection,
            _shares_where(connection, chosen, regions.c.sub_graph.between(found[0], found[-1])),
        )
    is_whole = len(found) < limit
    values = {"counted_to": found[-1] if found else state.counted_to, "is_whole": is_whole}
    connection.execute(sa.update(atlas_state).values(values))
    return not is_whole


def _up_to(connection: sa.Connection, sub_graphs: list[str], last: str) -> list[str]:
    """Those that are counted, by the database's own order of texts."""
    found = []
    for begin in range(0, len(sub_graphs), _BATCH):
        batch = sub_graphs[begin : begin + _BATCH]
        compared = (
            sa.cast(sa.literal(each), sa.Text) <= sa.cast(sa.literal(last), sa.Text) for each in batch
        )
        row = connection.execute(sa.select(*(each.label(f"c{i}") for i, each in enumerate(compared))))
        found += [each for each, is_counted in zip(batch, row.one(), strict=True) if is_counted]
    return found


def _shares(connection: sa.Connection, sub_graphs: list[str]) -> Shares:
    """The shares of these sub-graphs."""
    found: Shares = {}
    for begin in range(0, len(sub_graphs), _BATCH):
        batch = sub_graphs[begin : begin + _BATCH]
        made = _shares_where(connection, costs.c.sub_graph.in_(batch), regions.c.sub_graph.in_(batch))
        for place, share in made.items():
            found.setdefault(place, Share()).add(share)
    return found


def _shares_where(
    connection: sa.Connection, of_costs: sa.ColumnElement[bool], of_regions: sa.ColumnElement[bool]
) -> Shares:
    """The shares of the regions that both conditions choose."""
    small = sa.and_(costs.c.outcome == "measured", costs.c.node_count <= MOST_NODES)
    at = sa.type_coerce(costs.c.created_at, sa.Text)  # as the engine has it, which compares as well
    columns = ("hardware", "protocol", "sub_graph", "target", "latency_us", "model_sha256")
    points = sa.select(*(costs.c[name] for name in columns), costs.c.op_types, at)
    known = sa.select(regions).where(of_regions)
    classes = {row[0]: (row[1], row[2], row[3]) for row in connection.execute(known)}
    return _shares_of(connection.execute(points.where(of_costs, small)).all(), classes)


def _shares_of(points: Iterable[Any], classes: Mapping[str, tuple[str, str, str]]) -> Shares:
    """The shares of all points; of one target's versions the newest measurement counts."""
    groups: dict[tuple[str, str, str], dict[str, tuple[Any, float]]] = {}
    about: dict[str, tuple[str, set[str]]] = {}
    for machine, protocol, sub_graph, target, us, model, op_types, at in points:
        group = groups.setdefault((machine, protocol, sub_graph), {})
        if target not in group or group[target][0] < at:
            group[target] = (at, us)
        models = about.setdefault(sub_graph, (op_types, set()))[1]
        if model is not None:
            models.add(model[-_NAME_CHARACTERS:])
    found: Shares = {}
    for (machine, _, sub_graph), group in groups.items():
        if len(group) < 2:
            continue
        best = min(us for _, us in group.values())
        op_types, models = about[sub_graph]
        own_class = classes.get(sub_graph) or (op_types, UNKNOWN, UNKNOWN)
        for target, (_, us) in group.items():
            log = math.log(us / best)
            share = found.get(place := (machine, *own_class, target))
            if share is None:
                share = found[place] = Share()
            share.regions += 1
            share.fastest += us == best
            share.log_sum += log
            share.log_square_sum += log * log
            share.models |= models
    return found


def _apply(connection: sa.Connection, change: Shares) -> None:
    """Add shares to the cells; those without regions go."""
    keys = list(atlas_cells.primary_key.columns)
    places = sorted(change)
    for begin in range(0, len(places), _BATCH // len(keys)):
        batch = places[begin : begin + _BATCH // len(keys)]
        chosen = sa.tuple_(*keys).in_(batch)
        cells = {place: Share() for place in batch}
        for row in connection.execute(sa.select(atlas_cells).where(chosen)):
            place = (row.hardware, row.kind, row.shape_class, row.dtype, row.target)
            sums = (row.regions, row.fastest, row.log_sum, row.log_square_sum)
            cells[place] = Share(*sums, models=set(row.models))
        for place in batch:
            cells[place].add(change[place])
        connection.execute(sa.delete(atlas_cells).where(chosen))
        values = [_values(place, cell) for place, cell in cells.items() if cell.regions > 0]
        if values:
            connection.execute(sa.insert(atlas_cells), values)


def _values(place: Place, cell: Share) -> dict[str, Any]:
    names = ("hardware", "kind", "shape_class", "dtype", "target")
    return {
        **dict(zip(names, place, strict=True)),
        "regions": cell.regions,
        "fastest": cell.fastest,
        "log_sum": cell.log_sum,
        "log_square_sum": cell.log_square_sum,
        "models": sorted(cell.models)[:MOST_MODELS],
    }

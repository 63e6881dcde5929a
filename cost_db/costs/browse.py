"""Costs for people who look around: in any order, counted, and beside those of the same sub-graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import sqlalchemy as sa

from collage.cost_db.costs.queries import CostFilter, matching
from collage.cost_db.costs.row import CostRow
from collage.cost_db.costs.row_mapping import read_row, select_rows
from collage.cost_db.tables import costs

CostOrder = Literal["newest", "oldest", "fastest", "slowest", "target", "nodes"]
COST_ORDERS: tuple[CostOrder, ...] = get_args(CostOrder)

_MOST_OF_A_SUB_GRAPH = 200
_LATENCY = costs.c.latency_us
_ORDERS: Mapping[CostOrder, tuple[sa.ColumnElement[Any], ...]] = {
    "newest": (costs.c.created_at.desc(),),
    "oldest": (costs.c.created_at,),
    "fastest": (_LATENCY.is_(None), _LATENCY),
    "slowest": (_LATENCY.is_(None), _LATENCY.desc()),
    "target": (costs.c.target,),
    "nodes": (costs.c.node_count.desc(),),
}


def browse(
    connection: sa.Connection, wanted: CostFilter, order: CostOrder, first: int, limit: int
) -> tuple[CostRow, ...]:
    """The wanted costs in an order, from the `first` one on."""
    statement = (
        select_rows()
        .where(*matching(connection, wanted))
        .order_by(*_ORDERS[order], costs.c.digest)
        .offset(first)
        .limit(limit)
    )
    return tuple(read_row(row) for row in connection.execute(statement))


def count(connection: sa.Connection, wanted: CostFilter) -> int:
    """How many costs are wanted."""
    statement = sa.select(sa.func.count()).select_from(costs).where(*matching(connection, wanted))
    return int(connection.execute(statement).scalar_one())


def of_sub_graph(connection: sa.Connection, sub_graph: str) -> tuple[CostRow, ...]:
    """The newest costs of one sub-graph, the fastest first."""
    statement = (
        select_rows()
        .where(costs.c.sub_graph == sub_graph)
        .order_by(costs.c.created_at.desc(), costs.c.digest)
        .limit(_MOST_OF_A_SUB_GRAPH)
    )
    rows = [read_row(row) for row in connection.execute(statement)]
    return tuple(sorted(rows, key=lambda row: (row.latency_us is None, row.latency_us or 0.0)))

"""Cost rows in and out of the tables; other modules handle `CostRow` alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from collage.cost_db.costs.row import CostRow
from collage.cost_db.costs.summary import counted
from collage.cost_db.tables import cost_operators, costs, hardware

_PLAIN = [column.name for column in costs.columns if column.name != "backend"]


def select_rows() -> sa.Select[Any]:
    """Costs with the description of their hardware, to be narrowed by the caller."""
    columns = [costs.c[name] for name in _PLAIN]
    return sa.select(*columns, hardware.c.description.label("hardware_description")).outerjoin(
        hardware, hardware.c.fingerprint == costs.c.hardware
    )


def read_row(row: sa.Row[Any]) -> CostRow:
    """One result of `select_rows` as a value."""
    fields = dict(row._mapping)
    fields["samples_us"] = tuple(fields["samples_us"])
    fields["node_times_us"] = tuple(fields["node_times_us"])
    fields["hardware_description"] = fields["hardware_description"] or {}
    return CostRow(**fields)


def import_rows(connection: sa.Connection, rows: Sequence[CostRow]) -> list[str]:
    """The same, and the summary follows."""
    with counted(connection, [row.sub_graph for row in rows]):
        return insert_rows(connection, rows)


def insert_rows(connection: sa.Connection, rows: Sequence[CostRow]) -> list[str]:
    """Insert costs whose key is not there yet, with their operators and hardware.

    Of two rows with one key the first is inserted. Returns the digests that were inserted.
    """
    if not rows:
        return []
    described = {
        row.hardware: dict(row.hardware_description) for row in rows if row.hardware_description
    }
    if described:
        insert_new(
            connection,
            hardware,
            [{"fingerprint": key, "description": described[key]} for key in sorted(described)],
        )
    first = {row.digest: row for row in reversed(rows)}
    values = [_values(first[digest]) for digest in sorted(first)]
    inserted = insert_new(connection, costs, values)
    operators = [
        {"digest": row.digest, "op_type": op_type, "created_at": row.created_at}
        for row in first.values()
        if row.digest in inserted and row.op_types
        for op_type in row.op_types.split(" ")
    ]
    if operators:
        connection.execute(sa.insert(cost_operators), operators)
    return sorted(inserted)


def insert_new(
    connection: sa.Connection, table: sa.Table, values: Iterable[dict[str, Any]]
) -> set[str]:
    """Insert rows whose primary key is free; returns its first column of each inserted row.

    Rows come sorted by their key, so that two writers lock in one order.
    """
    statement = on_conflict(connection, table).values(list(values)).on_conflict_do_nothing()
    key = next(iter(table.primary_key.columns))
    return set(connection.execute(statement.returning(key)).scalars())


def on_conflict(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say ON CONFLICT, as this connection's engine writes it."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def _values(row: CostRow) -> dict[str, Any]:
    values = asdict(row)
    del values["hardware_description"]
    values["samples_us"] = list(row.samples_us)
    values["node_times_us"] = list(row.node_times_us)
    values["versions"] = dict(row.versions)
    values["backend"] = row.backend
    return values

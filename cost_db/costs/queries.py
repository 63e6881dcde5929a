"""Costs by filter: pages, deletion, and statistics. Newest first, by (created_at, digest).

Invariant: a tuning that may depend on a deleted cost is deleted too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs import summary
from collage.cost_db.costs.row import CostRow, Outcome
from collage.cost_db.costs.row_mapping import read_row, select_rows
from collage.cost_db.page import Page, check_limit, cursor, read_cursor
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import (
    claims,
    cost_operators,
    costs,
    gains,
    model_forms,
    observations,
    tunings,
)
from collage.partitioner.errors import BadInputError


def in_utc(name: str, moment: datetime) -> datetime:
    """The moment in UTC, as databases keep it.

    Raises:
        BadInputError: it is before the year 1 or after 9999 there.
    """
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise BadInputError(f"{name} is not between the years 1 and 9999 in UTC") from None


@dataclass(frozen=True)
class CostFilter:
    """Which costs are meant; a field that is not given allows everything."""

    target: str | None = None  # the target's canonical text
    backend: str | None = None  # the backend's name
    backend_version: str | None = None  # the runtime's own version text
    op_types: tuple[str, ...] = ()  # operator types that the sub-graph must all have
    host: str | None = None  # name of the machine that measured
    hardware: str | None = None  # hardware fingerprint
    # SHA-256 of a model for which it was first measured, as uploaded or normalized
    model: str | None = None
    since: datetime | None = None  # measured at this time or later
    until: datetime | None = None  # measured before this time
    outcome: Outcome | None = None  # `measured` or `infeasible`

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, datetime) and value.tzinfo is None:
                raise BadInputError(
                    f"{field.name} has no time zone; write for example 2026-01-31T12:00:00Z"
                )
            if isinstance(value, datetime):
                in_utc(field.name, value)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str):
                    plain(field.name, text)


@dataclass(frozen=True)
class CostStats:
    """What the database holds.

    Args:
        by_outcome, by_backend, by_host: how many costs for each.
        oldest, newest: when the first and the last were measured; None when there are none.
    """

    costs: int  # how many costs in all
    by_outcome: Mapping[str, int]
    by_backend: Mapping[str, int]
    by_host: Mapping[str, int]
    claims: int  # how many keys are being measured now
    oldest: datetime | None
    newest: datetime | None


def page_statement(
    wanted: CostFilter, after: str | None, limit: int, forms: Sequence[str] = ()
) -> sa.Select[Any]:
    """The SELECT of one page and one row more (which tells whether there is a next page).

    Args:
        wanted: which costs.
        after: the cursor of the page before.
        limit: most rows of the page.
        forms: the normalized models that `wanted.model` became.
    """
    # Where operators are asked for, the first one's index gives both the rows and their order.
    leading = cost_operators.alias("leading") if wanted.op_types else None
    key = (
        (leading.c.created_at, leading.c.digest)
        if leading is not None
        else (costs.c.created_at, costs.c.digest)
    )
    statement = select_rows()
    if leading is not None:
        statement = statement.join(leading, leading.c.digest == costs.c.digest).where(
            leading.c.op_type == wanted.op_types[0]
        )
    statement = statement.where(*_conditions(wanted, key[0], wanted.op_types[1:], forms))
    if after is not None:
        moment, digest = read_cursor(after, str, str)
        try:
            last = in_utc("cursor", datetime.fromisoformat(str(moment)))
        except ValueError:
            raise BadInputError(f"cursor {after!r} is not one that this server gave") from None
        statement = statement.where(
            sa.tuple_(*key) < sa.tuple_(sa.literal(last, costs.c.created_at.type), sa.literal(digest))
        )
    return statement.order_by(key[0].desc(), key[1].desc()).limit(limit + 1)


def query(
    connection: sa.Connection, wanted: CostFilter, after: str | None, limit: int
) -> Page[CostRow]:
    """One page of the wanted costs, newest first."""
    check_limit(limit)
    statement = page_statement(wanted, after, limit, _forms(connection, wanted))
    rows = [read_row(row) for row in connection.execute(statement)]
    more = len(rows) > limit
    rows = rows[:limit]
    following = cursor(rows[-1].created_at.isoformat(), rows[-1].digest) if more else None
    return Page(tuple(rows), following)


def forget(connection: sa.Connection, wanted: CostFilter, limit: int) -> int:
    """Delete up to `limit` of the wanted costs and return how many were deleted."""
    summary.lock(connection)
    chosen = (
        sa.select(costs.c.digest)
        .where(*matching(connection, wanted))
        .order_by(costs.c.digest)
        .limit(limit)
        .with_for_update()
    )
    count = connection.execute(sa.delete(costs).where(costs.c.digest.in_(chosen))).rowcount
    if count:
        # The summary may rest on them.
        summary.forget_all(connection)
        # A cost serves every model with the sub-graph, so only the machine narrows what depends on it.
        for table in (tunings, observations, gains):
            there = [] if wanted.hardware is None else [table.c.hardware == wanted.hardware]
            connection.execute(sa.delete(table).where(*there))
    return count


def stats(connection: sa.Connection) -> CostStats:
    """Sums over all costs (reads every row)."""

    def count_by(column: sa.Column[str]) -> dict[str, int]:
        statement = sa.select(column, sa.func.count()).group_by(column).order_by(column)
        return {row[0]: row[1] for row in connection.execute(statement)}

    by_outcome = count_by(costs.c.outcome)
    oldest, newest = connection.execute(
        sa.select(sa.func.min(costs.c.created_at), sa.func.max(costs.c.created_at))
    ).one()
    return CostStats(
        costs=sum(by_outcome.values()),
        by_outcome=by_outcome,
        by_backend=count_by(costs.c.backend),
        by_host=count_by(costs.c.host),
        claims=connection.execute(
            sa.select(sa.func.count()).select_from(claims).where(claims.c.owner.is_not(None))
        ).scalar_one(),
        oldest=oldest,
        newest=newest,
    )


def _forms(connection: sa.Connection, wanted: CostFilter) -> Sequence[str]:
    """The normalized models that an uploaded model became."""
    if wanted.model is None:
        return ()
    statement = sa.select(model_forms.c.normalized_sha256).where(model_forms.c.sha256 == wanted.model)
    return connection.execute(statement).scalars().all()


def matching(connection: sa.Connection, wanted: CostFilter) -> list[sa.ColumnElement[bool]]:
    """The conditions of a filter."""
    return _conditions(wanted, costs.c.created_at, wanted.op_types, _forms(connection, wanted))


def _conditions(
    wanted: CostFilter,
    created_at: sa.ColumnElement[datetime],
    op_types: tuple[str, ...],
    forms: Sequence[str],
) -> list[sa.ColumnElement[bool]]:
    equal = {
        "target": wanted.target,
        "backend": wanted.backend,
        "backend_version": wanted.backend_version,
        "host": wanted.host,
        "hardware": wanted.hardware,
        "outcome": wanted.outcome,
    }
    conditions = [costs.c[name] == value for name, value in equal.items() if value is not None]
    if wanted.model is not None:
        same = sorted({wanted.model, *forms})
        column = costs.c.model_sha256
        conditions.append(column == same[0] if len(same) == 1 else column.in_(same))
    if wanted.since is not None:
        conditions.append(created_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(created_at < wanted.until)
    for op_type in op_types:
        inside = sa.select(cost_operators.c.digest).where(
            cost_operators.c.digest == costs.c.digest, cost_operators.c.op_type == op_type
        )
        conditions.append(inside.exists())
    return conditions

"""Stored costs by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from collage.cost_db.costs.row import CostRow
from collage.cost_db.costs.row_mapping import read_row, select_rows
from collage.cost_db.tables import costs

BATCH = 1_000  # engines limit how many values one statement may carry


def batches(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    """The digests in pieces that one statement takes."""
    for start in range(0, len(digests), BATCH):
        yield digests[start : start + BATCH]


def look_up(connection: sa.Connection, digests: Sequence[str]) -> dict[str, CostRow]:
    """The stored costs among these keys: one statement for each thousand."""
    found: dict[str, CostRow] = {}
    for batch in batches(list(dict.fromkeys(digests))):
        statement = select_rows().where(costs.c.digest.in_(batch))
        found.update((row.digest, read_row(row)) for row in connection.execute(statement))
    return found

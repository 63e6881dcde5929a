"""The question that is asked most: what do these keys cost?"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cost_db.row import CostRow
from cost_db.rows import read_row, select_rows
from cost_db.tables import costs

BATCH = 1_000


def look_up(connection: sa.Connection, digests: Sequence[str]) -> dict[str, CostRow]:
    """The stored costs among these keys: one statement for each thousand."""
    found: dict[str, CostRow] = {}
    wanted = list(dict.fromkeys(digests))
    for start in range(0, len(wanted), BATCH):
        statement = select_rows().where(costs.c.digest.in_(wanted[start : start + BATCH]))
        found.update((row.digest, read_row(row)) for row in connection.execute(statement))
    return found

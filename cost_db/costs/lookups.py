"""Stored costs by their keys, and what is stored of sub-graphs at other sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

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


def points_of(
    connection: sa.Connection,
    structures: Sequence[str],
    targets: Collection[str],
    hardware: str,
    protocol: str,
) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """Work and microseconds of what was measured of these structures: one statement for each thousand.

    Returns:
        By structure, target and version of the backend.
    """
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for batch in batches(list(dict.fromkeys(structures))):
        statement = points_statement(batch, targets, hardware, protocol)
        for structure, target, version, work, latency_us in connection.execute(statement):
            found.setdefault((structure, target, version), []).append((work, latency_us))
    return found


def points_statement(
    structures: Sequence[str], targets: Collection[str], hardware: str, protocol: str
) -> sa.Select[Any]:
    """The SELECT of one batch of `points_of`."""
    key = (costs.c.structure, costs.c.target, costs.c.backend_version)
    return sa.select(*key, costs.c.work, costs.c.latency_us).where(
        costs.c.structure.in_(structures),
        costs.c.target.in_(targets),
        costs.c.hardware == hardware,
        costs.c.protocol == protocol,
        costs.c.outcome == "measured",
        costs.c.work.is_not(None),
    )

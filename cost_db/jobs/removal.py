"""Finished jobs that go: one by its owner, or those that are kept for long enough.

A job takes its events, labels and idempotency keys with it, and the blobs that nothing else refers to.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from collage.cost_db.blob_references import BLOBS, unregister_unused
from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.job import FINISHED
from collage.cost_db.tables import blobs, jobs
from collage.partitioner.errors import BadInputError

_BLOBS = ("artifact_sha256", "report_sha256", "plan_sha256", "inputs_sha256", "model_sha256")
_RESULTS = _BLOBS[:4]


class JobRemoval:
    """Removes finished jobs. The caller deletes the bytes of blobs that are unregistered."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def remove(self, job_id: str) -> tuple[str, ...] | None:
        """Delete a finished job.

        Returns:
            The blobs that are unregistered now; None where there is no such job.

        Raises:
            BadInputError: the job has not ended.
        """

        def work(connection: sa.Connection) -> tuple[str, ...] | None:
            self._connections.serialize(connection, BLOBS)
            return _remove(connection, job_id)

        return self._connections.write(work)

    def too_many(
        self, before: datetime | None, most_bytes: int | None, limit: int = 1_000
    ) -> Sequence[str]:
        """Finished jobs to remove, oldest first.

        Args:
            before: those that ended before this time.
            most_bytes: those beyond the newest whose results (artifact, report, plan, sample inputs)
                together are so large; a file that several jobs share counts once.
            limit: at most so many.
        """
        return self._connections.read(
            lambda connection: _too_many(connection, before, most_bytes)[::-1][:limit]
        )


def _remove(connection: sa.Connection, job_id: str) -> tuple[str, ...] | None:
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id).with_for_update()).first()
    if row is None:
        return None
    if row.state not in FINISHED:
        raise BadInputError(f"job {job_id!r} is {row.state}; cancel it before it is removed")
    connection.execute(sa.delete(jobs).where(jobs.c.id == job_id))
    return unregister_unused(connection, {sha256 for name in _BLOBS if (sha256 := getattr(row, name))})


def _too_many(connection: sa.Connection, before: datetime | None, most_bytes: int | None) -> list[str]:
    """Newest first."""
    statement = (
        sa.select(jobs.c.id, jobs.c.finished_at, *(jobs.c[name] for name in _RESULTS))
        .where(jobs.c.state.in_(FINISHED))
        .order_by(jobs.c.finished_at.desc(), jobs.c.number.desc())
    )
    sizes: dict[str, int] = {}
    if most_bytes is not None:
        rows = connection.execute(sa.select(blobs.c.sha256, blobs.c.size_bytes))
        sizes = {row.sha256: row.size_bytes for row in rows}
    total_bytes = 0
    chosen: list[str] = []
    for row in connection.execute(statement):
        total_bytes += sum(sizes.pop(row._mapping[name], 0) for name in set(_RESULTS))
        is_old = before is not None and row.finished_at < before
        if is_old or (most_bytes is not None and total_bytes > most_bytes):
            chosen.append(row.id)
    return chosen

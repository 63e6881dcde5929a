"""A job's events, numbered from 1 without gaps, so that a reader can go on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs.row import now
from collage.cost_db.tables import job_events, jobs
from collage.partitioner.errors import BadInputError


@dataclass(frozen=True)
class JobEvent:
    """One event: its number within the job, its kind, content and time."""

    seq: int
    kind: str
    data: Mapping[str, Any]
    created_at: datetime


def append(connection: sa.Connection, job_id: str, kind: str, data: Mapping[str, Any]) -> int:
    """Add an event and return its number.

    Raises:
        BadInputError: there is no such job.
    """
    # The update locks the job's row: two writers get two numbers, and a reader never sees a gap.
    counted = (
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(event_count=jobs.c.event_count + 1)
        .returning(jobs.c.event_count)
    )
    seq: int | None = connection.execute(counted).scalar_one_or_none()
    if seq is None:
        raise BadInputError(f"there is no job {job_id!r}")
    connection.execute(
        sa.insert(job_events).values(
            job_id=job_id, seq=seq, kind=kind, data=dict(data), created_at=now()
        )
    )
    return seq


def read_events(
    connection: sa.Connection, job_id: str, after_seq: int, limit: int
) -> tuple[JobEvent, ...]:
    """Events after a number, oldest first."""
    statement = (
        sa.select(job_events.c.seq, job_events.c.kind, job_events.c.data, job_events.c.created_at)
        .where(job_events.c.job_id == job_id, job_events.c.seq > after_seq)
        .order_by(job_events.c.seq)
        .limit(limit)
    )
    return tuple(JobEvent(**row._mapping) for row in connection.execute(statement))

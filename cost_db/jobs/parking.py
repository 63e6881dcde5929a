"""Parked jobs: they are queued, wait for something that they need, and hold no runner meanwhile.

A parked job runs again when somebody unparks it, or at a time at the latest: then it says itself what is
missing. Parking is no lost attempt, so its number goes back.
"""

from __future__ import annotations

import sqlalchemy as sa

from collage.cost_db.clock import database_now
from collage.cost_db.jobs.job import Job
from collage.cost_db.jobs.job_events import append
from collage.cost_db.jobs.job_list import read_jobs
from collage.cost_db.tables import jobs


def is_awake() -> sa.ColumnElement[bool]:
    """The condition that a queued job waits for nothing but its turn."""
    return sa.or_(jobs.c.parked_until.is_(None), jobs.c.parked_until <= database_now())


def park(connection: sa.Connection, job_id: str, attempt: int, until_s: float, reason: str) -> None:
    """Put a running job back; the caller has checked the attempt.

    Args:
        connection: in a transaction.
        job_id: the job.
        attempt: the present one.
        until_s: the latest time at which it runs again, in seconds from now.
        reason: what it waits for, in one sentence.
    """
    values = {
        "state": "queued",
        "lease_until": None,
        "started_at": None,
        "attempt": attempt - 1,
        "parked_until": database_now() + until_s,
        "progress": {"stage": "waiting", "message": reason, "done": None, "total": None},
    }
    connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
    append(connection, job_id, "state", {"state": "queued", "reason": reason})


def parked(connection: sa.Connection) -> tuple[Job, ...]:
    """The jobs that are parked, oldest first."""
    statement = sa.select(jobs).where(jobs.c.state == "queued", ~is_awake()).order_by(jobs.c.number)
    return read_jobs(connection, connection.execute(statement).all())


def unpark(connection: sa.Connection, job_id: str) -> None:
    """Let a parked job run when its turn comes."""
    connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(parked_until=None))

"""Who is told that a job has ended, and how often that was tried.

A job that ends with a webhook is due at once. A sender takes it for a while: when the sender dies, the
job is due again. So a webhook may come twice, and never gets lost with a server.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from collage.cost_db.clock import database_now
from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.job import Job
from collage.cost_db.jobs.job_list import read_jobs
from collage.cost_db.tables import jobs


def due_at_end() -> dict[str, Any]:
    """Values of a job's row that say, where it has a webhook, that it is due now."""
    has_one = jobs.c.webhook_url.is_not(None)
    return {
        "webhook_due": sa.case((has_one, database_now())),
        "webhook_state": sa.case((has_one, "waiting")),
    }


class WebhookStore:
    """Webhooks of jobs that have ended. Safe from many threads and processes."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def take_due(self, lease_s: float) -> Job | None:
        """A job whose webhook is due, taken for a time; None when there is none."""
        return self._connections.write(lambda connection: _take_due(connection, lease_s))

    def settle(self, job_id: str, *, delivered: bool, again_in_s: float | None) -> None:
        """Note what became of a try; without `again_in_s` it was the last one."""
        state = "delivered" if delivered else "failed" if again_in_s is None else "waiting"
        due = None if delivered or again_in_s is None else database_now() + again_in_s
        values = {"webhook_state": state, "webhook_due": due}
        statement = sa.update(jobs).where(jobs.c.id == job_id).values(values)
        self._connections.write(lambda connection: connection.execute(statement))


def _take_due(connection: sa.Connection, lease_s: float) -> Job | None:
    statement = (
        sa.select(jobs.c.id)
        .where(jobs.c.webhook_due <= database_now())
        .order_by(jobs.c.webhook_due)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    job_id = connection.execute(statement).scalar()
    if job_id is None:
        return None
    values = {"webhook_due": database_now() + lease_s, "webhook_tries": jobs.c.webhook_tries + 1}
    connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
    rows = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).all()
    return read_jobs(connection, rows)[0]

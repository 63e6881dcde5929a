"""Running jobs that go back to the queue: their worker was lost, or gives them back.

A job whose worker was lost in several attempts fails, for it may be what kills them. Who gives a job back has
lost nothing, so the attempt's number goes back too.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from collage.cost_db.clock import database_now
from collage.cost_db.jobs.job import Job
from collage.cost_db.jobs.job_events import append
from collage.cost_db.jobs.job_rows import end_values, get_row
from collage.cost_db.tables import jobs


def requeue_expired(connection: sa.Connection, max_attempts: int) -> tuple[Job, ...]:
    """Put jobs whose lease has ended back; returns what changed."""
    expired = (
        sa.select(jobs)
        .where(jobs.c.state == "running", jobs.c.lease_until <= database_now())
        .order_by(jobs.c.number)
        .with_for_update()
    )
    changed = []
    for row in connection.execute(expired).all():
        values = _queued(row.cancel_requested)
        if values["state"] == "queued" and row.attempt >= max_attempts:
            reason = f"its worker was lost in {row.attempt} attempts, the last of them {row.worker}"
            values = {"state": "failed", "reason": reason, **end_values(), "lease_until": None}
        connection.execute(sa.update(jobs).where(jobs.c.id == row.id).values(values))
        data = {"state": values["state"], "reason": f"worker {row.worker} was lost"}
        append(connection, row.id, "state", data)
        changed.append(get_row(connection, row.id))
    return tuple(changed)


def give_back(connection: sa.Connection, job_id: str, attempt: int) -> None:
    """Put a running job back; the caller has checked the attempt."""
    values = _queued(get_row(connection, job_id).cancel_requested)
    if values["state"] == "queued":
        values |= {"attempt": attempt - 1, "started_at": None}
    connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
    append(connection, job_id, "state", {"state": values["state"], "reason": "its worker stops"})


def _queued(is_cancelled: bool) -> dict[str, Any]:
    """The values of a job that waits again, or that was to be cancelled and so ends."""
    if is_cancelled:
        return {"state": "cancelled", "reason": "cancelled", **end_values(), "lease_until": None}
    return {"state": "queued", "lease_until": None}

"""A job as a value: what was asked for, how it stands, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

State = Literal["queued", "running", "done", "failed", "cancelled"]
Json = Mapping[str, Any]

FINISHED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class JobResult:
    """What a job made: SHA-256 of blobs that are registered in `collage.cost_db.stored_models`."""

    artifact: str | None = None
    report: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Job:
    """A job as it is now.

    Args:
        id: 32 hexadecimal digits that cannot be guessed.
        owner: id of the token that asked for it, or any other name of an owner.
        state: see `collage.cost_db.jobs.jobs`.
        spec: what was asked for.
        model_sha256: the model's blob.
        created_at, started_at, finished_at: started is the last attempt's start.
        worker: who works on it, or did last.
        attempt: number of the present or last attempt, 0 before the first.
        cancel_requested: somebody wants it to stop.
        last_event: `seq` of its last event, 0 before the first.
        progress: what the worker said last about how far it is.
        reason: why it failed or was cancelled.
        result: what it made.
    """

    id: str
    owner: str
    state: State
    spec: Json
    model_sha256: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    attempt: int
    cancel_requested: bool
    last_event: int
    progress: Json | None
    reason: str | None
    result: JobResult


def read_job(row: sa.Row[Any]) -> Job:
    """A row of the table of jobs as a value."""
    return Job(
        id=row.id,
        owner=row.owner,
        state=row.state,
        spec=row.spec,
        model_sha256=row.model_sha256,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        worker=row.worker,
        attempt=row.attempt,
        cancel_requested=row.cancel_requested,
        last_event=row.event_count,
        progress=row.progress,
        reason=row.reason,
        result=JobResult(row.artifact_sha256, row.report_sha256, row.plan_sha256),
    )

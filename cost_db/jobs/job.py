"""A job as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

State = Literal["queued", "running", "done", "failed", "cancelled"]
Json = Mapping[str, Any]

FINISHED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class JobResult:
    """What a job made: SHA-256 of registered blobs."""

    artifact: str | None = None
    report: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Job:
    """A job as it is now."""

    id: str  # 32 hexadecimal digits that cannot be guessed
    owner: str  # id of the token that asked for it, or any other name of an owner
    state: State  # see `collage.cost_db.jobs.jobs`
    spec: Json  # what was asked for
    model_sha256: str | None  # the model's blob
    created_at: datetime
    started_at: datetime | None  # of the last attempt
    finished_at: datetime | None
    worker: str | None  # who works on it, or did last
    attempt: int  # number of the present or last attempt, 0 before the first
    cancel_requested: bool  # it is to stop
    progress: Json | None  # what the worker said last about how far it is
    reason: str | None
    result: JobResult


def read_job(row: sa.Row[Any]) -> Job:
    """A row of the table of jobs as a value."""
    made = JobResult(row.artifact_sha256, row.report_sha256, row.plan_sha256)
    plain = {field.name: getattr(row, field.name) for field in fields(Job) if field.name != "result"}
    return Job(**plain, result=made)

"""A job as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

Kind = Literal["tune", "diagnose", "watch"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
WebhookState = Literal["waiting", "delivered", "failed"]
Json = Mapping[str, Any]

FINISHED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class JobRequest:
    """What a job is made of, beside its specification."""

    model_sha256: str | None = None  # the model's blob, registered before
    inputs_sha256: str | None = None  # the blob of the sample inputs, registered before
    name: str = ""  # for people, and to filter by
    labels: tuple[str, ...] = ()  # words by which people find it again
    note: str | None = None
    webhook_url: str | None = None  # is told when the job ends
    kind: Kind = "tune"
    posts_model: bool = False  # the model becomes the owner's, within its quota


@dataclass(frozen=True)
class JobResult:
    """What a job made: SHA-256 of registered blobs."""

    artifact: str | None = None  # of a tuning a model, of a diagnosis a zip
    report: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Job:
    """A job as it is now."""

    id: str  # 32 hexadecimal digits that cannot be guessed
    owner: str  # id of the token that asked for it, or any other name of an owner
    kind: Kind
    state: State  # see `collage.cost_db.jobs.jobs`
    spec: Json  # what was asked for
    name: str
    note: str | None
    model_sha256: str | None  # the model's blob
    inputs_sha256: str | None  # the blob of the sample inputs
    normalized_sha256: str | None  # the model's as it was read; None until then
    created_at: datetime
    started_at: datetime | None  # of the last attempt
    finished_at: datetime | None
    worker: str | None  # who works on it, or did last
    attempt: int  # number of the present or last attempt, 0 before the first
    cancel_requested: bool  # it is to stop
    parked_until: float | None  # by the database's clock; see `park`
    progress: Json | None  # what the worker said last about how far it is
    reason: str | None
    webhook_url: str | None
    webhook_state: WebhookState | None
    webhook_tries: int
    result: JobResult = field(default_factory=JobResult)
    labels: tuple[str, ...] = ()


_APART = ("result", "labels")


def read_job(row: sa.Row[Any], labels: tuple[str, ...]) -> Job:
    """A row of the table of jobs, and its labels, as a value."""
    made = JobResult(row.artifact_sha256, row.report_sha256, row.plan_sha256)
    plain = {each.name: getattr(row, each.name) for each in fields(Job) if each.name not in _APART}
    for name in ("spec", "progress"):
        if plain[name] is not None and not isinstance(plain[name], dict):
            plain[name] = {"damaged": True}  # nothing that a reader looks for
    return Job(**plain, result=made, labels=labels)

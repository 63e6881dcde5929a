"""Rows of the table of jobs, read and checked within a transaction."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa

from collage.cost_db.blob_references import post_model
from collage.cost_db.costs.row import now
from collage.cost_db.errors import QuotaExceededError, StaleAttemptError
from collage.cost_db.jobs import job_list, webhooks
from collage.cost_db.jobs.job import Job, JobRequest
from collage.cost_db.tables import blobs, jobs, tokens
from collage.partitioner.errors import BadInputError


def request_hash(asked: JobRequest, spec_text: str) -> str:
    """The hash by which a repeated request is known."""
    beside: list[Any] = [list(asked.labels), asked.note, asked.webhook_url]
    if asked.kind != "tune":  # so that hashes from before there were kinds stay
        beside.append(asked.kind)
    more = f" {json.dumps(beside)}" if any(beside) else ""
    return hashlib.sha256(f"{asked.model_sha256} {spec_text}{more}".encode()).hexdigest()


def end_values() -> dict[str, Any]:
    """Values of the row of a job that ends."""
    return {"finished_at": now(), "parked_until": None, **webhooks.due_at_end()}


def get_row(connection: sa.Connection, job_id: str) -> Job:
    """The job, which is there."""
    rows = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).all()
    return job_list.read_jobs(connection, rows)[0]


def lock_row(connection: sa.Connection, job_id: str) -> Job:
    """The job, locked until the transaction ends.

    Raises:
        BadInputError: there is no such job.
    """
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id).with_for_update()).first()
    if row is None:
        raise BadInputError(f"there is no job {job_id!r}")
    return job_list.read_jobs(connection, [row])[0]


def check_attempt(connection: sa.Connection, job_id: str, attempt: int) -> None:
    """Lock the job.

    Raises:
        StaleAttemptError: the attempt is over.
    """
    job = lock_row(connection, job_id)
    if job.state != "running" or job.attempt != attempt:
        raise StaleAttemptError(job_id, attempt)


def check_active(connection: sa.Connection, owner: str) -> None:
    """Check the owner's quota.

    Raises:
        QuotaExceededError: the owner has as many unfinished jobs as it may.
    """
    limit = connection.execute(sa.select(tokens.c.active_jobs).where(tokens.c.id == owner)).scalar()
    if limit is None:
        return
    active = sa.select(sa.func.count()).where(
        jobs.c.owner == owner, jobs.c.state.in_(["queued", "running"])
    )
    if connection.execute(active).scalar_one() >= limit:
        raise QuotaExceededError(
            "active_jobs",
            limit,
            f"{limit} jobs wait or run, and this token may have no more; wait until one has ended, "
            "cancel one, or ask for a larger --active-jobs",
        )


def refer_to_files(connection: sa.Connection, owner: str, asked: JobRequest) -> None:
    """Check the files of a request, and register its model where it posts one; the caller has their lock.

    Raises:
        BadInputError: one is not registered.
        QuotaExceededError: the owner's models would be too large.
    """
    check_blobs(connection, [sha for sha in (asked.model_sha256, asked.inputs_sha256) if sha])
    if asked.posts_model and asked.model_sha256 is not None:
        post_model(connection, asked.model_sha256, owner, asked.name, now())


def check_blobs(connection: sa.Connection, hashes: list[str]) -> None:
    """Check that blobs are there.

    Raises:
        BadInputError: one is not registered.
    """
    statement = sa.select(blobs.c.sha256).where(blobs.c.sha256.in_(hashes))
    if missing := set(hashes) - set(connection.execute(statement).scalars()):
        raise BadInputError(f"no file with SHA-256 {sorted(missing)[0]} is registered; upload it first")

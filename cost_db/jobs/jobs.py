"""Jobs, their events and their queue.

States::

    queued ──next_queued──▶ running ──finish──▶ done | failed | cancelled
       │ ◀──requeue_expired──┘  (its worker's lease ended)
       └──request_cancel──▶ cancelled

An *attempt* is one worker's turn on a job. Its number is the worker's fence: writes for an attempt that
is over are refused.

Invariants: only a running job has a lease; a finished job never changes; every change of state is also
an event of kind `state`. The queue is fair between owners (`job_queue`); an owner at its limit of
running jobs is passed over.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from collage.cost_db.clock import database_now
from collage.cost_db.costs.row import now
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import QuotaExceededError, StaleAttemptError
from collage.cost_db.jobs import idempotency, job_queue
from collage.cost_db.jobs.job import FINISHED, Job, JobResult, Json, State, read_job
from collage.cost_db.jobs.job_events import JobEvent, append, read_events
from collage.cost_db.page import Page, check_limit, cursor, read_cursor
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import blobs, jobs, tokens
from collage.partitioner.errors import BadInputError


class JobStore:
    """Jobs, their events and their queue. Safe from many threads and processes."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def create(
        self,
        spec: Json,
        owner: str,
        idempotency_key: str | None = None,
        *,
        model_sha256: str | None = None,
    ) -> Job:
        """Queue a job.

        Args:
            spec: what is asked for, as JSON.
            owner: a token's id has that token's quotas.
            idempotency_key: a second call with the same key and request gives the first one's job.
            model_sha256: the model's blob, registered before.

        Raises:
            QuotaExceededError: the owner has as many unfinished jobs as it may.
            IdempotencyConflictError: the key came with another request before.
            BadInputError: the model's blob is not registered.
        """
        plain("owner", owner, 200)
        spec_text = json.dumps(spec, sort_keys=True, allow_nan=False)
        request = hashlib.sha256(f"{model_sha256} {spec_text}".encode()).hexdigest()
        job_id = uuid.uuid4().hex
        values = {
            "id": job_id,
            "owner": owner,
            "state": "queued",
            "spec": json.loads(spec_text),
            "model_sha256": model_sha256,
            "created_at": now(),
            "attempt": 0,
            "cancel_requested": False,
            "event_count": 0,
        }

        def work(connection: sa.Connection) -> Job:
            self._connections.serialize(connection, f"jobs of {owner}")
            if idempotency_key is not None:
                earlier = idempotency.find(connection, owner, idempotency_key, request)
                if earlier is not None:
                    return _get(connection, earlier)
            _check_active(connection, owner)
            if model_sha256 is not None:
                _check_blobs(connection, [model_sha256])
            # A repeated write, after the connection broke at the commit, finds its own job.
            if connection.execute(sa.select(jobs.c.id).where(jobs.c.id == job_id)).first() is None:
                connection.execute(sa.insert(jobs).values(values))
                append(connection, job_id, "state", {"state": "queued"})
            if idempotency_key is not None:
                idempotency.remember(connection, owner, idempotency_key, request, job_id)
            return _get(connection, job_id)

        return self._connections.write(work)

    def get(self, job_id: str) -> Job | None:
        """A job, or None where there is no such job."""
        plain("job id", job_id)
        statement = sa.select(jobs).where(jobs.c.id == job_id)
        row = self._connections.read(lambda connection: connection.execute(statement).first())
        return None if row is None else read_job(row)

    def list(
        self,
        owner: str | None = None,
        state: State | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Job]:
        """A page of jobs, newest first; `after` is `Page.next` of the page before."""
        check_limit(limit)
        statement = sa.select(jobs).order_by(jobs.c.number.desc()).limit(limit + 1)
        if owner is not None:
            statement = statement.where(jobs.c.owner == plain("owner", owner))
        if state is not None:
            statement = statement.where(jobs.c.state == state)
        if after is not None:
            statement = statement.where(jobs.c.number < read_cursor(after, int)[0])
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        following = cursor(rows[limit - 1].number) if len(rows) > limit else None
        return Page(tuple(read_job(row) for row in rows[:limit]), following)

    def next_queued(self, worker: str, lease_s: float) -> Job | None:
        """Take the job whose turn it is, for `lease_s` seconds; None when there is none."""

        def work(connection: sa.Connection) -> Job | None:
            self._connections.serialize(connection, "queue")
            job_id = job_queue.take_turn(connection)
            if job_id is None:
                return None
            values = {
                "state": "running",
                "worker": worker,
                "attempt": jobs.c.attempt + 1,
                "started_at": now(),
                "lease_until": database_now() + lease_s,
            }
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
            append(connection, job_id, "state", {"state": "running", "worker": worker})
            return _get(connection, job_id)

        return self._connections.write(work)

    def renew_lease(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Lengthen the worker's lease; False: the attempt is over, stop working."""
        statement = (
            sa.update(jobs)
            .where(jobs.c.id == job_id, jobs.c.state == "running", jobs.c.attempt == attempt)
            .values(lease_until=database_now() + lease_s)
        )
        return self._connections.write(lambda connection: connection.execute(statement).rowcount) == 1

    def requeue_expired(self, max_attempts: int = 3) -> tuple[Job, ...]:
        """Put jobs of dead workers back to their old place in the queue; returns what changed.

        A job that was to be cancelled is cancelled, and one that has lost its worker in `max_attempts`
        attempts fails: it may be what kills them.
        """

        def work(connection: sa.Connection) -> tuple[Job, ...]:
            expired = (
                sa.select(jobs)
                .where(jobs.c.state == "running", jobs.c.lease_until <= database_now())
                .order_by(jobs.c.number)
                .with_for_update()
            )
            changed = []
            for row in connection.execute(expired).all():
                values: dict[str, Any] = {"state": "queued", "lease_until": None}
                if row.cancel_requested:
                    values |= {"state": "cancelled", "reason": "cancelled", "finished_at": now()}
                elif row.attempt >= max_attempts:
                    reason = (
                        f"its worker was lost in {row.attempt} attempts, the last of them {row.worker}"
                    )
                    values |= {"state": "failed", "reason": reason, "finished_at": now()}
                connection.execute(sa.update(jobs).where(jobs.c.id == row.id).values(values))
                data = {"state": values["state"], "reason": f"worker {row.worker} was lost"}
                append(connection, row.id, "state", data)
                changed.append(_get(connection, row.id))
            return tuple(changed)

        return self._connections.write(work)

    def append_event(
        self,
        job_id: str,
        kind: str,
        data: Json,
        *,
        attempt: int | None = None,
        progress: Json | None = None,
    ) -> int:
        """Add an event to a job and return its number, from 1 without gaps.

        Args:
            kind: one word.
            data: as JSON.
            attempt: of the worker that writes; None for the server itself.
            progress: what to show in lists of jobs from now on.

        Raises:
            StaleAttemptError: that attempt is over.
            BadInputError: there is no such job.
        """

        def work(connection: sa.Connection) -> int:
            if attempt is not None:
                _check_attempt(connection, job_id, attempt)
            if progress is not None:
                connection.execute(
                    sa.update(jobs).where(jobs.c.id == job_id).values(progress=dict(progress))
                )
            return append(connection, job_id, kind, data)

        return self._connections.write(work)

    def events(self, job_id: str, after_seq: int = 0, limit: int = 1_000) -> tuple[JobEvent, ...]:
        """The job's events after number `after_seq`, oldest first."""
        check_limit(limit)
        return self._connections.read(
            lambda connection: read_events(connection, job_id, after_seq, limit)
        )

    def event_counts(self, job_ids: Sequence[str]) -> dict[str, int]:
        """How many events each of these jobs has; a job that is gone is left out."""
        statement = sa.select(jobs.c.id, jobs.c.event_count).where(jobs.c.id.in_(job_ids))
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return {row.id: row.event_count for row in rows}

    def finish(
        self,
        job_id: str,
        state: State,
        *,
        attempt: int | None = None,
        result: JobResult | None = None,
        reason: str | None = None,
    ) -> Job:
        """End a job that runs, or that waits when it failed or was cancelled before it began.

        Args:
            state: `done`, `failed` or `cancelled`.
            attempt: of the worker that writes; None for the server itself.
            result: registered blobs.

        Raises:
            StaleAttemptError: that attempt is over, or the job has ended.
            BadInputError: there is no such job or blob, or the state is no end.
        """
        if state not in FINISHED:
            raise BadInputError(f"a job cannot end as {state!r}")
        made = result or JobResult()
        values = {
            "state": state,
            "reason": reason,
            "finished_at": now(),
            "lease_until": None,
            "artifact_sha256": made.artifact,
            "report_sha256": made.report,
            "plan_sha256": made.plan,
        }

        def work(connection: sa.Connection) -> Job:
            job = _locked(connection, job_id)
            if job.state in FINISHED or (attempt is not None and attempt != job.attempt):
                raise StaleAttemptError(job_id, job.attempt if attempt is None else attempt)
            _check_blobs(connection, [sha for sha in (made.artifact, made.report, made.plan) if sha])
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
            append(connection, job_id, "state", {"state": state, "reason": reason})
            return _get(connection, job_id)

        return self._connections.write(work)

    def request_cancel(self, job_id: str) -> Job:
        """Ask a job to stop: a queued one at once, a running one by its worker.

        Raises:
            BadInputError: there is no such job.
        """

        def work(connection: sa.Connection) -> Job:
            job = _locked(connection, job_id)
            values: dict[str, Any] = {"cancel_requested": True}
            if job.state == "queued":
                values |= {"state": "cancelled", "reason": "cancelled", "finished_at": now()}
                append(connection, job_id, "state", {"state": "cancelled", "reason": "cancelled"})
            if job.state not in FINISHED:
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
            return _get(connection, job_id)

        return self._connections.write(work)

    def is_cancel_requested(self, job_id: str) -> bool:
        statement = sa.select(jobs.c.cancel_requested).where(jobs.c.id == job_id)
        return bool(self._connections.read(lambda connection: connection.execute(statement).scalar()))

    def places_in_queue(self, job_ids: Sequence[str]) -> dict[str, int]:
        """The places, from 1, of those of the jobs that wait."""
        if not job_ids:
            return {}
        return self._connections.read(lambda connection: job_queue.places(connection, job_ids))

    def count(self) -> dict[str, int]:
        """How many jobs are in each state."""
        statement = sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
        return self._connections.read(
            lambda connection: {row[0]: row[1] for row in connection.execute(statement)}
        )


def _get(connection: sa.Connection, job_id: str) -> Job:
    return read_job(connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one())


def _locked(connection: sa.Connection, job_id: str) -> Job:
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id).with_for_update()).first()
    if row is None:
        raise BadInputError(f"there is no job {job_id!r}")
    return read_job(row)


def _check_attempt(connection: sa.Connection, job_id: str, attempt: int) -> None:
    job = _locked(connection, job_id)
    if job.state != "running" or job.attempt != attempt:
        raise StaleAttemptError(job_id, attempt)


def _check_active(connection: sa.Connection, owner: str) -> None:
    limit = connection.execute(sa.select(tokens.c.active_jobs).where(tokens.c.id == owner)).scalar()
    if limit is None:
        return
    active = sa.select(sa.func.count()).where(
        jobs.c.owner == owner, jobs.c.state.in_(["queued", "running"])
    )
    if connection.execute(active).scalar_one() >= limit:
        raise QuotaExceededError("active_jobs", limit)


def _check_blobs(connection: sa.Connection, hashes: list[str]) -> None:
    statement = sa.select(blobs.c.sha256).where(blobs.c.sha256.in_(hashes))
    if missing := set(hashes) - set(connection.execute(statement).scalars()):
        raise BadInputError(f"no file with SHA-256 {sorted(missing)[0]} is registered; upload it first")

"""Jobs, their events and their queue.

States::

    queued ──next_queued──▶ running ──finish──▶ done | failed | cancelled ──remove──▶ gone
       │ ◀──requeue_expired──┘  (its worker's lease ended)
       │ ◀──give_back────────┘  (its worker stops)
       │ ◀──park─────────────┘  (what it needs is not there)
       └──request_cancel──▶ cancelled

An *attempt* is one worker's turn on a job. Its number is the worker's fence: writes for an attempt that
is over are refused.

Invariants: only a running job has a lease; a finished job never changes; every change of state is also
an event of kind `state`. The queue is fair between owners (`job_queue`); an owner at its limit of
running jobs is passed over. A *parked* job is queued, waits for something that it needs, and is passed
over until then; it is nobody's turn that is used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from collage.cost_db.blob_references import BLOBS
from collage.cost_db.clock import database_now
from collage.cost_db.costs.row import now
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import StaleAttemptError
from collage.cost_db.jobs import idempotency, job_list, job_queue, leases, parking
from collage.cost_db.jobs.job import FINISHED, Job, JobRequest, JobResult, Json, State
from collage.cost_db.jobs.job_events import JobEvent, append, read_events
from collage.cost_db.jobs.job_list import JobFilter, check_labels, check_note
from collage.cost_db.jobs.job_rows import (
    check_active,
    check_attempt,
    check_blobs,
    end_values,
    get_row,
    lock_row,
    refer_to_files,
    request_hash,
)
from collage.cost_db.page import Page, check_limit
from collage.cost_db.plain_text import plain, plain_json
from collage.cost_db.tables import jobs
from collage.partitioner.errors import BadInputError

_SPEC_BYTES = 9 << 20


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
        request: JobRequest | None = None,
    ) -> Job:
        """Queue a job.

        Args:
            spec: what is asked for, as JSON.
            owner: a token's id has that token's quotas.
            idempotency_key: a second call with the same key and request gives the first one's job.
            model_sha256: the model's blob, where that is all of the request.
            request: files, labels and the rest.

        Raises:
            QuotaExceededError: the owner has as many unfinished jobs, or stored bytes, as it may.
            IdempotencyConflictError: the key came with another request before.
            BadInputError: a blob is not registered, or what is asked for cannot be stored.
        """
        plain("owner", owner, 200)
        asked = request or JobRequest(model_sha256)
        labels = check_labels(asked.labels)
        spec_text = plain_json("the job", dict(spec), _SPEC_BYTES)
        request_sha256 = request_hash(asked, spec_text)
        job_id = uuid.uuid4().hex
        values = {
            "id": job_id,
            "owner": owner,
            "kind": asked.kind,
            "state": "queued",
            "spec": json.loads(spec_text),
            "name": plain("name", asked.name, 500),
            "note": check_note(asked.note),
            "model_sha256": asked.model_sha256,
            "inputs_sha256": asked.inputs_sha256,
            "webhook_url": None if asked.webhook_url is None else plain("webhook", asked.webhook_url),
            "webhook_tries": 0,
            "created_at": now(),
            "attempt": 0,
            "cancel_requested": False,
            "event_count": 0,
        }

        def work(connection: sa.Connection) -> Job:
            self._connections.serialize(connection, f"jobs of {owner}")
            if idempotency_key is not None:
                earlier = idempotency.find(connection, owner, idempotency_key, request_sha256)
                if earlier is not None:
                    return get_row(connection, earlier)
            check_active(connection, owner)
            self._connections.serialize(connection, BLOBS)
            refer_to_files(connection, owner, asked)
            # A repeated write, after the connection broke at the commit, finds its own job.
            if connection.execute(sa.select(jobs.c.id).where(jobs.c.id == job_id)).first() is None:
                connection.execute(sa.insert(jobs).values(values))
                job_list.write_labels(connection, job_id, labels)
                append(connection, job_id, "state", {"state": "queued"})
            if idempotency_key is not None:
                idempotency.remember(connection, owner, idempotency_key, request_sha256, job_id)
            return get_row(connection, job_id)

        return self._connections.write(work)

    def get(self, job_id: str) -> Job | None:
        """A job, or None where there is no such job."""
        plain("job id", job_id)
        statement = sa.select(jobs).where(jobs.c.id == job_id)

        def work(connection: sa.Connection) -> Job | None:
            found = job_list.read_jobs(connection, connection.execute(statement).all())
            return found[0] if found else None

        return self._connections.read(work)

    def list(
        self,
        owner: str | None = None,
        state: State | None = None,
        after: str | None = None,
        limit: int = 100,
        *,
        wanted: JobFilter | None = None,
    ) -> Page[Job]:
        """A page of jobs, newest first; `after` is `Page.next` of the page before.

        `wanted` has more conditions, and comes in place of `owner` and `state`.
        """
        chosen = wanted or JobFilter(owner, state)
        return self._connections.read(
            lambda connection: job_list.list_jobs(connection, chosen, after, limit)
        )

    def describe(self, job_id: str, *, labels: Sequence[str] | None, note: str | None) -> Job:
        """Change a job's labels or its note; None leaves what is there, an empty note removes it.

        Raises:
            BadInputError: there is no such job, or a label or the note cannot be kept.
        """
        chosen = None if labels is None else check_labels(labels)
        text = check_note(note)

        def work(connection: sa.Connection) -> Job:
            lock_row(connection, job_id)
            if chosen is not None:
                job_list.write_labels(connection, job_id, chosen)
            if note is not None:
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(note=text))
            return get_row(connection, job_id)

        return self._connections.write(work)

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
                "parked_until": None,
            }
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
            append(connection, job_id, "state", {"state": "running", "worker": worker})
            return get_row(connection, job_id)

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

        return self._connections.write(
            lambda connection: leases.requeue_expired(connection, max_attempts)
        )

    def _change(self, job_id: str, attempt: int, change: Callable[[sa.Connection], object]) -> None:
        """Change a job for the attempt that runs it; StaleAttemptError where that is over."""

        def work(connection: sa.Connection) -> None:
            check_attempt(connection, job_id, attempt)
            change(connection)

        self._connections.write(work)

    def give_back(self, job_id: str, attempt: int) -> None:
        """Put a running job back to its old place in the queue; that attempt does not count.

        Raises:
            StaleAttemptError: that attempt is over.
        """

        self._change(job_id, attempt, lambda connection: leases.give_back(connection, job_id, attempt))

    def park(self, job_id: str, attempt: int, until_s: float, reason: str) -> None:
        """Put a running job back until something that it needs is there; see `parking`.

        Raises:
            StaleAttemptError: that attempt is over.
        """

        self._change(
            job_id,
            attempt,
            lambda connection: parking.park(connection, job_id, attempt, until_s, reason),
        )

    def parked(self) -> tuple[Job, ...]:
        """The jobs that are parked, oldest first."""
        return self._connections.read(parking.parked)

    def unpark(self, job_id: str) -> None:
        """Let a parked job run when its turn comes."""
        self._connections.write(lambda connection: parking.unpark(connection, job_id))

    def note_normalized(self, job_id: str, normalized_sha256: str, *, attempt: int) -> None:
        """Note which normalized model the job's model became.

        Raises:
            StaleAttemptError: that attempt is over.
        """

        self._change(
            job_id,
            attempt,
            lambda connection: job_list.write_normalized(connection, job_id, normalized_sha256),
        )

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
                check_attempt(connection, job_id, attempt)
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
            **end_values(),
            "lease_until": None,
            "artifact_sha256": made.artifact,
            "report_sha256": made.report,
            "plan_sha256": made.plan,
        }

        def work(connection: sa.Connection) -> Job:
            self._connections.serialize(connection, BLOBS)
            job = lock_row(connection, job_id)
            if job.state in FINISHED or (attempt is not None and attempt != job.attempt):
                raise StaleAttemptError(job_id, job.attempt if attempt is None else attempt)
            check_blobs(connection, [sha for sha in (made.artifact, made.report, made.plan) if sha])
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
            append(connection, job_id, "state", {"state": state, "reason": reason})
            return get_row(connection, job_id)

        return self._connections.write(work)

    def request_cancel(self, job_id: str) -> Job:
        """Ask a job to stop: a queued one at once, a running one by its worker.

        Raises:
            BadInputError: there is no such job.
        """

        def work(connection: sa.Connection) -> Job:
            job = lock_row(connection, job_id)
            values: dict[str, Any] = {"cancel_requested": True}
            if job.state == "queued":
                values |= {"state": "cancelled", "reason": "cancelled", **end_values()}
                append(connection, job_id, "state", {"state": "cancelled", "reason": "cancelled"})
            if job.state not in FINISHED:
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(values))
            return get_row(connection, job_id)

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

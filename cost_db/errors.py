"""What can go wrong in the shared memory, as the caller can catch it."""

from __future__ import annotations

from collage.partitioner.errors import BadInputError, CollageError


class DatabaseError(CollageError):
    """The database refused or failed (disk full, no rights, damaged file …)."""


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be reached, or stayed locked, for as long as we were ready to wait."""


class SchemaError(DatabaseError):
    """The tables are older or newer than this program; the message says which command helps."""


class StaleFenceError(DatabaseError):
    """A measurement came after its claim was taken over or given back; it is not stored.

    Args:
        digest: the cost key that was claimed.
        fence: the fence number of the late writer.
    """

    def __init__(self, digest: str, fence: int) -> None:
        super().__init__(
            f"the claim on cost {digest[:12]} with fence {fence} is over: "
            "look the cost up again, or claim it again"
        )
        self.digest = digest
        self.fence = fence


class StaleAttemptError(DatabaseError):
    """A worker spoke for a job that is no longer its own (its lease ended, or the job has ended).

    Args:
        job_id: the job.
        attempt: the attempt for which the worker spoke.
    """

    def __init__(self, job_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} of job {job_id} is over: stop working on it")
        self.job_id = job_id
        self.attempt = attempt


class IdempotencyConflictError(BadInputError):
    """One Idempotency-Key was sent with two different requests."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"idempotency key {key!r} was already used with another request; choose a new key"
        )
        self.key = key


class QuotaExceededError(BadInputError):
    """The owner has used up one of its quotas.

    Args:
        quota: its name, as in `Quotas`.
        limit: its value.
    """

    def __init__(self, quota: str, limit: int) -> None:
        super().__init__(
            f"quota {quota} of {limit} is used up; wait until work has ended, or ask for more"
        )
        self.quota = quota
        self.limit = limit

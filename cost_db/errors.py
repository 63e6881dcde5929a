"""Errors of the database that a caller can catch."""

from __future__ import annotations

from collage.partitioner.errors import BadInputError, CollageError


class DatabaseError(CollageError):
    """The database refused or failed (disk full, no rights, damaged file …)."""


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be reached, or stayed locked, for longer than the patience given."""


class SchemaError(DatabaseError):
    """The tables are older or newer than this program; the message says which command helps."""


class StaleFenceError(DatabaseError):
    """A measurement came after its claim was taken over or released; it is not stored."""

    def __init__(self, digest: str, fence: int) -> None:
        super().__init__(
            f"the claim on cost {digest[:12]} with fence {fence} is over: "
            "look the cost up again, or claim it again"
        )
        self.digest = digest
        self.fence = fence


class StaleAttemptError(DatabaseError):
    """A worker wrote for a job that is no longer its own (its lease or the job has ended)."""

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
    """The owner has used up the quota of this name in `Quotas`; `help_text` says what helps."""

    def __init__(self, quota: str, limit: int, help_text: str) -> None:
        super().__init__(f"quota {quota} is used up: {help_text}")
        self.quota = quota
        self.limit = limit

"""Requests made under an Idempotency-Key, so that repeating one changes nothing.

A key belongs to its owner and stands for one request (by hash) and its job.

Source: IETF draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import sqlalchemy as sa

from collage.cost_db.costs.row import now
from collage.cost_db.errors import IdempotencyConflictError
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import idempotency_keys

KEY_LIMIT = 255


def find(connection: sa.Connection, owner: str, key: str, request_sha256: str) -> str | None:
    """The job of this request, or None.

    Raises:
        IdempotencyConflictError: the key came with another request.
        BadInputError: the key is too long.
    """
    plain("idempotency key", key, KEY_LIMIT)
    statement = sa.select(idempotency_keys.c.request_sha256, idempotency_keys.c.job_id).where(
        idempotency_keys.c.owner == owner, idempotency_keys.c.key == key
    )
    found = connection.execute(statement).first()
    if found is None:
        return None
    if found.request_sha256 != request_sha256:
        raise IdempotencyConflictError(key)
    job_id: str = found.job_id
    return job_id


def remember(connection: sa.Connection, owner: str, key: str, request_sha256: str, job_id: str) -> None:
    """Store the job of a request, within the transaction that makes the job."""
    connection.execute(
        sa.insert(idempotency_keys).values(
            owner=owner, key=key, request_sha256=request_sha256, job_id=job_id, created_at=now()
        )
    )

"""What keeps a blob: invariant: a blob that a model, a job or a watch refers to is never unregistered.

Whoever adds a reference or removes one holds the lock `BLOBS`, so that none appears while another
transaction takes its blob for unused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa

from collage.cost_db.errors import QuotaExceededError
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import blobs, jobs, models, tokens, watches
from collage.partitioner.errors import BadInputError

BLOBS = "blobs"  # the name for `Connections.serialize`

_REFERENCES = (
    models.c.sha256,
    jobs.c.model_sha256,
    jobs.c.inputs_sha256,
    jobs.c.artifact_sha256,
    jobs.c.report_sha256,
    jobs.c.plan_sha256,
    watches.c.artifact_sha256,
)


def unused() -> sa.ColumnElement[bool]:
    """The condition that nothing refers to a row of `blobs`."""
    return sa.and_(*(~sa.exists().where(reference == blobs.c.sha256) for reference in _REFERENCES))


def unregister_unused(connection: sa.Connection, hashes: Iterable[str]) -> tuple[str, ...]:
    """Unregister those of the blobs that nothing refers to; the caller has the lock, and deletes bytes."""
    statement = (
        sa.delete(blobs).where(blobs.c.sha256.in_(list(hashes)), unused()).returning(blobs.c.sha256)
    )
    return tuple(sorted(connection.execute(statement).scalars()))


def post_model(
    connection: sa.Connection, sha256: str, owner: str, name: str, created_at: datetime
) -> None:
    """Register a model of an owner whose blob is registered; a second call changes nothing.

    The caller has the lock.

    Raises:
        QuotaExceededError: the owner's models would be larger than its `stored_bytes`.
        BadInputError: the blob is not registered.
    """
    values = {"sha256": sha256, "owner": plain("owner", owner, 200), "name": plain("name", name, 500)}
    mine = sa.select(models.c.number).where(models.c.owner == owner, models.c.sha256 == sha256)
    if connection.execute(mine).first() is None:
        _check_stored(connection, sha256, owner)
        connection.execute(sa.insert(models).values(**values, created_at=created_at))


def _check_stored(connection: sa.Connection, sha256: str, owner: str) -> None:
    size = connection.execute(sa.select(blobs.c.size_bytes).where(blobs.c.sha256 == sha256)).scalar()
    if size is None:
        raise BadInputError(f"no file with SHA-256 {sha256} is registered; upload it first")
    limit = connection.execute(sa.select(tokens.c.stored_bytes).where(tokens.c.id == owner)).scalar()
    stored = (
        sa.select(sa.func.coalesce(sa.func.sum(blobs.c.size_bytes), 0))
        .join(models, models.c.sha256 == blobs.c.sha256)
        .where(models.c.owner == owner)
    )
    if limit is None:
        return
    used = connection.execute(stored).scalar_one()
    if used + size > limit:
        raise QuotaExceededError(
            "stored_bytes",
            limit,
            f"this model has {size} bytes, and the models you posted have {used} of the {limit} that this "
            "token may store; remove some with DELETE /v1/models/{sha256} (GET /v1/models lists them), "
            "or ask for a larger --stored-bytes",
        )

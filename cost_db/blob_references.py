"""What keeps a blob: invariant: a blob that a model, a job or a watch refers to is never unregistered.

Whoever adds a reference or removes one holds the lock `BLOBS`, so that none appears while another
transaction takes its blob for unused.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from collage.cost_db.tables import blobs, jobs, models, watches

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

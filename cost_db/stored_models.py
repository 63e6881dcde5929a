"""Which files exist and who posted which model. The bytes lie elsewhere, under their SHA-256.

Terms: a *blob* is any file the service keeps: a model, an artifact, a report, a plan. A *model* is a
blob that an owner posted under a name; two owners may post one blob.

Invariant: a blob that a model or a job refers to cannot be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.blob_references import BLOBS, post_model, unregister_unused, unused
from collage.cost_db.costs.row import now
from collage.cost_db.costs.row_mapping import on_conflict
from collage.cost_db.database import CostDatabase
from collage.cost_db.page import Page, check_limit, cursor, read_cursor
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import blobs, jobs, models


@dataclass(frozen=True)
class RegisteredBlob:
    """A file: its SHA-256, size in bytes, media type and when it last came."""

    sha256: str
    size_bytes: int
    media_type: str
    created_at: datetime
    # Whether the `BlobRegister.add` that gave this made the row.
    is_new: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class StoredModel:
    """A model that an owner posted."""

    sha256: str
    owner: str
    name: str
    size_bytes: int
    created_at: datetime


class BlobRegister:
    """The register of files. Register a blob after its bytes are stored; drop it before they go."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def add(self, sha256: str, size_bytes: int, media_type: str) -> RegisteredBlob:
        """Register a file; one that is registered counts as new again."""
        values = {
            "sha256": sha256,
            "size_bytes": size_bytes,
            "media_type": media_type,
            "created_at": now(),
        }

        def work(connection: sa.Connection) -> RegisteredBlob:
            self._connections.serialize(connection, BLOBS)
            mine = sa.select(blobs).where(blobs.c.sha256 == sha256)
            is_new = connection.execute(mine).first() is None
            insert = on_conflict(connection, blobs).values(values)
            connection.execute(
                insert.on_conflict_do_update(
                    index_elements=[blobs.c.sha256], set_={"created_at": insert.excluded.created_at}
                )
            )
            return RegisteredBlob(**connection.execute(mine).one()._mapping, is_new=is_new)

        return self._connections.write(work)

    def get(self, sha256: str) -> RegisteredBlob | None:
        """A registered file, or None."""
        statement = sa.select(blobs).where(blobs.c.sha256 == plain("sha256", sha256))
        row = self._connections.read(lambda connection: connection.execute(statement).first())
        return None if row is None else RegisteredBlob(**row._mapping)

    def drop_unused(self, before: datetime, limit: int = 1_000) -> tuple[str, ...]:
        """Unregister unused files older than `before`; the caller deletes their bytes."""
        chosen = (
            sa.select(blobs.c.sha256)
            .where(blobs.c.created_at < before, unused())
            .order_by(blobs.c.sha256)
            .limit(limit)
        )
        statement = sa.delete(blobs).where(blobs.c.sha256.in_(chosen)).returning(blobs.c.sha256)

        def work(connection: sa.Connection) -> tuple[str, ...]:
            self._connections.serialize(connection, BLOBS)
            return tuple(sorted(connection.execute(statement).scalars()))

        return self._connections.write(work)

    def take_back(self, added: Sequence[RegisteredBlob]) -> tuple[str, ...]:
        """Unregister what `add` gave, for a request that is refused; the caller deletes the bytes.

        What was registered before, what somebody added since, and what something refers to stays.
        """
        mine = [
            sa.and_(blobs.c.sha256 == each.sha256, blobs.c.created_at == each.created_at)
            for each in added
            if each.is_new
        ]
        if not mine:
            return ()
        statement = sa.delete(blobs).where(sa.or_(*mine), unused()).returning(blobs.c.sha256)

        def work(connection: sa.Connection) -> tuple[str, ...]:
            self._connections.serialize(connection, BLOBS)
            return tuple(sorted(connection.execute(statement).scalars()))

        return self._connections.write(work)

    def unknown(self, hashes: Sequence[str]) -> list[str]:
        """Those that are not registered."""
        statement = sa.select(blobs.c.sha256).where(blobs.c.sha256.in_(hashes))
        known = set(
            self._connections.read(lambda connection: connection.execute(statement).scalars().all())
        )
        return [sha256 for sha256 in hashes if sha256 not in known]

    def begins_at(self) -> datetime | None:
        """The time of the first file, model or job that this database has; None where it has none."""
        columns = (blobs.c.created_at, models.c.created_at, jobs.c.created_at)
        firsts = [sa.select(sa.func.min(column)) for column in columns]
        times = self._connections.read(
            lambda connection: [connection.execute(first).scalar() for first in firsts]
        )
        return min((time for time in times if time is not None), default=None)

    def delete_bytes(self, sha256: str, delete: Callable[[str], None]) -> None:
        """Call `delete` for an unregistered file; nobody can register it meanwhile."""

        def work(connection: sa.Connection) -> None:
            self._connections.serialize(connection, BLOBS)
            registered = sa.select(blobs.c.sha256).where(blobs.c.sha256 == sha256)
            if connection.execute(registered).first() is None:
                delete(sha256)

        self._connections.write(work)


class ModelStore:
    """Models that owners posted."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def add(self, sha256: str, owner: str, name: str) -> StoredModel:
        """Register a model of an owner whose blob is registered; a second call changes nothing.

        Raises:
            QuotaExceededError: the owner's models would be larger than its `stored_bytes`.
            BadInputError: the blob is not registered.
        """

        def work(connection: sa.Connection) -> StoredModel:
            self._connections.serialize(connection, BLOBS)
            post_model(connection, sha256, owner, name, now())
            mine = _select().where(models.c.owner == owner, models.c.sha256 == sha256)
            return _read(connection.execute(mine).one())

        return self._connections.write(work)

    def get(self, sha256: str, owner: str | None = None) -> StoredModel | None:
        """The model as this owner (or as anybody first) posted it, or None."""
        statement = _select().where(models.c.sha256 == plain("sha256", sha256))
        if owner is not None:
            statement = statement.where(models.c.owner == owner)
        statement = statement.order_by(models.c.number).limit(1)
        row = self._connections.read(lambda connection: connection.execute(statement).first())
        return None if row is None else _read(row)

    def list(
        self, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[StoredModel]:
        """A page of models, newest first."""
        check_limit(limit)
        statement = _select().order_by(models.c.number.desc()).limit(limit + 1)
        if owner is not None:
            statement = statement.where(models.c.owner == plain("owner", owner))
        if after is not None:
            statement = statement.where(models.c.number < read_cursor(after, int)[0])
        rows: Sequence[sa.Row[Any]] = self._connections.read(
            lambda connection: connection.execute(statement).all()
        )
        following = cursor(rows[limit - 1].number) if len(rows) > limit else None
        return Page(tuple(_read(row) for row in rows[:limit]), following)

    def remove(self, sha256: str, owner: str) -> tuple[str, ...] | None:
        """Remove the owner's model; its blob stays while anything refers to it.

        Returns:
            The blob where it is unregistered now, whose bytes the caller deletes; None where there is no
            such model.
        """
        statement = sa.delete(models).where(models.c.sha256 == sha256, models.c.owner == owner)

        def work(connection: sa.Connection) -> tuple[str, ...] | None:
            self._connections.serialize(connection, BLOBS)
            if connection.execute(statement).rowcount == 0:
                return None
            return unregister_unused(connection, [sha256])

        return self._connections.write(work)


def _select() -> sa.Select[Any]:
    return sa.select(models, blobs.c.size_bytes).join(blobs, blobs.c.sha256 == models.c.sha256)


def _read(row: sa.Row[Any]) -> StoredModel:
    return StoredModel(row.sha256, row.owner, row.name, row.size_bytes, row.created_at)

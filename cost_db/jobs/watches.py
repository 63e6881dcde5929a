"""Artifacts that a server measures again and again, and what each measurement found.

Terms: a *watch* is an artifact with an owner. It is *due* at a time, when a job of kind `watch` is to be
made for it. A *run* is what such a job found in one environment; a run that measured this server's own
environment keeps the measurement, which the next one is compared with.

Invariant: a watch that is due is taken by one server alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.blob_references import BLOBS
from collage.cost_db.clock import database_now
from collage.cost_db.costs.row import now
from collage.cost_db.database import CostDatabase
from collage.cost_db.page import Page, check_limit, cursor, read_cursor
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import blobs, watch_runs, watches
from collage.partitioner.errors import BadInputError

_MOST_SHOWN = 1_000


@dataclass(frozen=True)
class Watch:
    """A watched artifact."""

    id: str  # 32 hexadecimal digits that cannot be guessed
    owner: str
    name: str
    created_at: datetime
    job_id: str  # the tuning that made the artifact, or makes it
    artifact_sha256: str | None  # None until the tuning is done
    targets: Sequence[str]  # those of the plan; empty until then
    webhook_url: str | None
    due: float | None  # by the database's clock; None: at no time
    problem: str | None  # why it is not measured


@dataclass(frozen=True)
class WatchRun:
    """What one measurement found in one environment."""

    watch_id: str
    job_id: str
    environment: str
    created_at: datetime
    verdict: str
    result: Mapping[str, Any]  # as `collage.watch.run` made it
    measured: Mapping[str, Any] | None  # of the server's own environment


class WatchStore:
    """Watches and their runs. Safe from many threads and processes."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def add(self, name: str, owner: str, job_id: str, webhook_url: str | None = None) -> Watch:
        """Watch what a job makes or has made; its artifact is given later."""
        values = {
            "id": uuid.uuid4().hex,
            "owner": plain("owner", owner, 200),
            "name": plain("name", name, 500),
            "created_at": now(),
            "job_id": job_id,
            "targets": [],
            "webhook_url": None if webhook_url is None else plain("webhook", webhook_url),
        }

        def work(connection: sa.Connection) -> Watch:
            connection.execute(sa.insert(watches).values(values))
            return _get(connection, str(values["id"]))

        return self._connections.write(work)

    def get(self, watch_id: str) -> Watch | None:
        """A watch, or None where there is none."""
        statement = sa.select(watches).where(watches.c.id == plain("watch id", watch_id))
        row = self._connections.read(lambda connection: connection.execute(statement).first())
        return None if row is None else _read(row)

    def list(self, after: str | None = None, limit: int = 100) -> Page[Watch]:
        """A page of watches, newest first."""
        check_limit(limit)
        key = (watches.c.created_at, watches.c.id)
        statement = sa.select(watches).order_by(key[0].desc(), key[1].desc()).limit(limit + 1)
        if after is not None:
            moment, watch_id = read_cursor(after, str, str)
            try:
                last = datetime.fromisoformat(str(moment))
            except ValueError:
                raise BadInputError(f"cursor {after!r} is not one that this server gave") from None
            bound = sa.tuple_(sa.literal(last, watches.c.created_at.type), sa.literal(watch_id))
            statement = statement.where(sa.tuple_(*key) < bound)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        following = None
        if len(rows) > limit:
            following = cursor(rows[limit - 1].created_at.isoformat(), rows[limit - 1].id)
        return Page(tuple(_read(row) for row in rows[:limit]), following)

    def remove(self, watch_id: str) -> None:
        """Remove a watch with its runs."""
        statement = sa.delete(watches).where(watches.c.id == watch_id)
        self._connections.write(lambda connection: connection.execute(statement))

    def waiting(self) -> tuple[Watch, ...]:
        """Those that have no artifact yet, and no reason why."""
        return self._all(watches.c.artifact_sha256.is_(None), watches.c.problem.is_(None))

    def measurable(self) -> tuple[Watch, ...]:
        """Those that have an artifact."""
        return self._all(watches.c.artifact_sha256.is_not(None))

    def give_artifact(self, watch_id: str, artifact_sha256: str, targets: Sequence[str]) -> None:
        """The artifact of a watch is made; it is due now. One that it has already stays.

        Raises:
            BadInputError: the artifact is not registered.
        """
        values = {
            "artifact_sha256": artifact_sha256,
            "targets": list(targets),
            "due": database_now(),
            "problem": None,
        }

        def work(connection: sa.Connection) -> None:
            self._connections.serialize(connection, BLOBS)
            known = sa.select(blobs.c.sha256).where(blobs.c.sha256 == artifact_sha256)
            if connection.execute(known).first() is None:
                raise BadInputError(f"artifact {artifact_sha256} is not kept any more")
            # Once: another server may have been first, and have made its job.
            has_none = sa.and_(watches.c.id == watch_id, watches.c.artifact_sha256.is_(None))
            connection.execute(sa.update(watches).where(has_none).values(values))

        self._connections.write(work)

    def note_problem(self, watch_id: str, problem: str | None) -> None:
        """Say why a watch is not measured; None: it is."""
        self._change(watch_id, problem=problem)

    def make_due(self, watch_id: str, in_s: float = 0.0) -> None:
        """Let a watch be measured in so many seconds, as soon as a server looks then."""
        self._change(watch_id, due=database_now() + in_s)

    def take_due(self, every_s: float | None) -> Watch | None:
        """A watch that is due, which is due again `every_s` seconds later; None when there is none."""

        def work(connection: sa.Connection) -> Watch | None:
            statement = (
                sa.select(watches)
                .where(watches.c.due <= database_now(), watches.c.artifact_sha256.is_not(None))
                .order_by(watches.c.due)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            row = connection.execute(statement).first()
            if row is None:
                return None
            again = None if every_s is None else database_now() + every_s
            connection.execute(sa.update(watches).where(watches.c.id == row.id).values(due=again))
            return _read(row)

        return self._connections.write(work)

    def schedule(self, every_s: float | None) -> None:
        """Let watches that have no time be due in `every_s` seconds, and none later than that.

        Args:
            every_s: None: those that wait for their time have none any more.
        """
        time = None if every_s is None else database_now() + every_s
        later = watches.c.due > database_now()
        wanted = later if every_s is None else sa.or_(watches.c.due.is_(None), watches.c.due > time)
        statement = sa.update(watches).where(watches.c.artifact_sha256.is_not(None), wanted)
        self._connections.write(lambda connection: connection.execute(statement.values(due=time)))

    def note(
        self, watch_id: str, job_id: str, results: Sequence[Mapping[str, Any]], measured: Any
    ) -> None:
        """Keep what a job found: one run per environment; the measurement goes with the first.

        A watch that was removed meanwhile keeps nothing.
        """
        values = [
            {
                "watch_id": watch_id,
                "job_id": job_id,
                "environment": result["environment"],
                "created_at": now(),
                "verdict": result["verdict"],
                "result": dict(result),
                "measured": measured if position == 0 else None,
            }
            for position, result in enumerate(results)
        ]

        def work(connection: sa.Connection) -> None:
            row = sa.select(watches.c.id).where(watches.c.id == watch_id).with_for_update()
            known = sa.select(watch_runs.c.job_id).where(watch_runs.c.job_id == job_id).limit(1)
            if connection.execute(row).first() and not connection.execute(known).first():
                connection.execute(sa.insert(watch_runs), values)

        if values:
            self._connections.write(work)

    def runs(self, watch_id: str, limit: int = _MOST_SHOWN) -> tuple[WatchRun, ...]:
        """The newest runs of a watch, the oldest of them first."""
        statement = (
            sa.select(*(watch_runs.c[each.name] for each in fields(WatchRun)))
            .where(watch_runs.c.watch_id == watch_id)
            .order_by(watch_runs.c.number.desc())
            .limit(limit)
        )
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return tuple(WatchRun(**row._mapping) for row in reversed(rows))

    def last_measured(self, watch_id: str) -> Mapping[str, Any] | None:
        """The last measurement of the server's own environment, or None."""
        return next(iter(self.measurements(watch_id, limit=1)), None)

    def measurements(self, watch_id: str, limit: int = _MOST_SHOWN) -> tuple[Mapping[str, Any], ...]:
        """The newest measurements of the server's own environment, the oldest of them first."""
        statement = (
            sa.select(watch_runs.c.measured)
            .where(watch_runs.c.watch_id == watch_id, watch_runs.c.measured.is_not(None))
            .order_by(watch_runs.c.number.desc())
            .limit(limit)
        )
        rows = self._connections.read(lambda connection: connection.execute(statement).scalars().all())
        return tuple(reversed(rows))

    def _all(self, *conditions: sa.ColumnElement[bool]) -> tuple[Watch, ...]:
        statement = sa.select(watches).where(*conditions).order_by(watches.c.created_at, watches.c.id)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return tuple(_read(row) for row in rows)

    def _change(self, watch_id: str, **values: Any) -> None:
        statement = sa.update(watches).where(watches.c.id == watch_id).values(values)
        self._connections.write(lambda connection: connection.execute(statement))


def _get(connection: sa.Connection, watch_id: str) -> Watch:
    return _read(connection.execute(sa.select(watches).where(watches.c.id == watch_id)).one())


def _read(row: sa.Row[Any]) -> Watch:
    return Watch(**row._mapping)

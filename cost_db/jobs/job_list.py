"""Which jobs are meant: filters, pages and labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs.row_mapping import on_conflict
from collage.cost_db.jobs.job import Job, Kind, State, read_job
from collage.cost_db.page import Page, check_limit, cursor, read_cursor
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import job_labels, jobs, model_forms
from collage.partitioner.errors import BadInputError

MOST_LABELS = 20
LABEL_CHARACTERS = 100
NOTE_CHARACTERS = 10_000


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are meant; a field that is not given allows everything."""

    owner: str | None = None
    state: State | None = None
    name: str | None = None  # a part of the name, in any case
    model: str | None = None  # SHA-256 of the model, as uploaded or normalized
    labels: tuple[str, ...] = ()  # all of them
    since: datetime | None = None  # made at this time or later
    until: datetime | None = None  # made before this time
    kind: Kind | None = None


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in order, each once.

    Raises:
        BadInputError: there are too many, or one is empty, too long or has spaces around it.
    """
    chosen = tuple(sorted(set(labels)))
    if len(chosen) > MOST_LABELS:
        raise BadInputError(f"labels: {len(chosen)} are given; a job has at most {MOST_LABELS}")
    for label in chosen:
        plain("labels", label, LABEL_CHARACTERS)
        if not label or label != label.strip() or not label.isprintable():
            raise BadInputError(f"labels: {label!r} is empty, has spaces around it, or cannot be shown")
    return chosen


def check_note(note: str | None) -> str | None:
    """The note, or None for an empty one.

    Raises:
        BadInputError: it is too long.
    """
    return plain("note", note, NOTE_CHARACTERS) or None if note is not None else None


def list_jobs(connection: sa.Connection, wanted: JobFilter, after: str | None, limit: int) -> Page[Job]:
    """One page of the wanted jobs, newest first."""
    check_limit(limit)
    statement = sa.select(jobs).where(*_conditions(wanted)).order_by(jobs.c.number.desc())
    if after is not None:
        statement = statement.where(jobs.c.number < read_cursor(after, int)[0])
    rows = connection.execute(statement.limit(limit + 1)).all()
    following = cursor(rows[limit - 1].number) if len(rows) > limit else None
    return Page(read_jobs(connection, rows[:limit]), following)


def read_jobs(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> tuple[Job, ...]:
    """Rows of the table of jobs as values, with their labels."""
    found: dict[str, list[str]] = {row.id: [] for row in rows}
    if rows:
        statement = sa.select(job_labels).where(job_labels.c.job_id.in_(list(found)))
        for row in connection.execute(statement.order_by(job_labels.c.label)):
            found[row.job_id].append(row.label)
    return tuple(read_job(row, tuple(found[row.id])) for row in rows)


def write_labels(connection: sa.Connection, job_id: str, labels: Iterable[str]) -> None:
    """Give a job these labels and no others."""
    connection.execute(sa.delete(job_labels).where(job_labels.c.job_id == job_id))
    if rows := [{"job_id": job_id, "label": label} for label in labels]:
        connection.execute(sa.insert(job_labels), rows)


def write_normalized(connection: sa.Connection, job_id: str, normalized_sha256: str) -> None:
    """Note which normalized model a job's model became; costs are found by either (`model_forms`)."""
    change = sa.update(jobs).where(jobs.c.id == job_id).values(normalized_sha256=normalized_sha256)
    sha256 = connection.execute(change.returning(jobs.c.model_sha256)).scalar()
    if sha256 is not None:
        form = {"sha256": sha256, "normalized_sha256": normalized_sha256}
        connection.execute(on_conflict(connection, model_forms).values(form).on_conflict_do_nothing())


def _conditions(wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.owner is not None:
        conditions.append(jobs.c.owner == plain("owner", wanted.owner))
    if wanted.state is not None:
        conditions.append(jobs.c.state == wanted.state)
    if wanted.kind is not None:
        conditions.append(jobs.c.kind == wanted.kind)
    if wanted.name is not None:
        part = plain("name", wanted.name).lower()
        conditions.append(sa.func.lower(jobs.c.name).contains(part, autoescape=True))
    if wanted.model is not None:
        sha256 = plain("model", wanted.model)
        conditions.append(sa.or_(jobs.c.model_sha256 == sha256, jobs.c.normalized_sha256 == sha256))
    for label in wanted.labels:
        has = sa.exists().where(
            job_labels.c.job_id == jobs.c.id, job_labels.c.label == plain("label", label)
        )
        conditions.append(has)
    if wanted.since is not None:
        conditions.append(jobs.c.created_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(jobs.c.created_at < wanted.until)
    return conditions

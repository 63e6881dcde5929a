"""Jobs for people who look around: searched by name, in any order, and counted by state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import sqlalchemy as sa

from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.job import Job, State
from collage.cost_db.jobs.job_list import read_jobs
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import jobs

JobOrder = Literal["newest", "oldest", "name", "latency", "speedup"]
JOB_ORDERS: tuple[JobOrder, ...] = get_args(JobOrder)

_NAME = jobs.c.spec["name"].as_string()
_LATENCY = jobs.c.progress["summary"]["latency_us"].as_float()
_SPEEDUP = jobs.c.progress["summary"]["speedup"].as_float()
_ORDERS: Mapping[JobOrder, tuple[sa.ColumnElement[Any], ...]] = {
    "newest": (jobs.c.created_at.desc(),),
    "oldest": (jobs.c.created_at,),
    "name": (sa.func.lower(_NAME), jobs.c.created_at.desc()),
    "latency": (_LATENCY.is_(None), _LATENCY),
    "speedup": (_SPEEDUP.is_(None), _SPEEDUP.desc()),
}


@dataclass(frozen=True)
class JobSearch:
    """Which jobs are meant; a field that is not given allows everything."""

    text: str = ""  # part of the name, in any case
    state: State | None = None
    owner: str | None = None


class JobBrowser:
    """Looks around among the jobs of a database. Safe from many threads."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def page(self, wanted: JobSearch, order: JobOrder, first: int, limit: int) -> tuple[Job, ...]:
        """The wanted jobs in an order, from the `first` one on."""
        statement = (
            sa.select(jobs)
            .where(*_conditions(wanted))
            .order_by(*_ORDERS[order], jobs.c.id)
            .offset(first)
            .limit(limit)
        )
        return self._connections.read(
            lambda connection: read_jobs(connection, connection.execute(statement).all())
        )

    def count_by_state(self, wanted: JobSearch) -> dict[str, int]:
        """How many jobs are in each state, whatever state is wanted."""
        anywhere = JobSearch(wanted.text, None, wanted.owner)
        statement = (
            sa.select(jobs.c.state, sa.func.count())
            .where(*_conditions(anywhere))
            .group_by(jobs.c.state)
        )
        return self._connections.read(
            lambda connection: {row[0]: row[1] for row in connection.execute(statement)}
        )


def _conditions(wanted: JobSearch) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.text:
        conditions.append(_NAME.icontains(plain("text", wanted.text), autoescape=True))
    if wanted.state is not None:
        conditions.append(jobs.c.state == wanted.state)
    if wanted.owner is not None:
        conditions.append(jobs.c.owner == plain("owner", wanted.owner))
    return conditions

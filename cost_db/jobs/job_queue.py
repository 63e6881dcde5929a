"""The order in which queued jobs are taken: owners in turn, each owner's oldest job first.

In round r, every owner that waits gives its r-th job; within a round, the owner whose turn was longest
ago comes first. Each owner's last turn is a number that grows with every job taken.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import sqlalchemy as sa

from collage.cost_db.costs.row_mapping import on_conflict
from collage.cost_db.jobs.parking import is_awake
from collage.cost_db.tables import jobs, queue_turns, tokens


def take_turn(connection: sa.Connection) -> str | None:
    """The next job of an owner that may run one more; the owner's turn is used.

    The caller has the queue's lock.
    """
    running = (
        sa.select(sa.func.count())
        .where(jobs.c.owner == tokens.c.id, jobs.c.state == "running")
        .correlate(tokens)
        .scalar_subquery()
    )
    at_limit = sa.select(tokens.c.id).where(tokens.c.running_jobs <= running)
    order = _order().subquery()
    statement = (
        sa.select(order.c.id, order.c.owner)
        .where(order.c.owner.not_in(at_limit))
        .order_by(order.c.place)
        .limit(1)
    )
    found = connection.execute(statement).first()
    if found is None:
        return None
    last = connection.execute(sa.select(sa.func.max(queue_turns.c.turn))).scalar() or 0
    connection.execute(
        on_conflict(connection, queue_turns)
        .values(owner=found.owner, turn=last + 1)
        .on_conflict_do_update(index_elements=[queue_turns.c.owner], set_={"turn": last + 1})
    )
    job_id: str = found.id
    return job_id


def places(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, int]:
    """Places in the queue, from 1, of those of the jobs that wait."""
    rows = connection.execute(_places(), {"job_ids": list(job_ids)})
    return {row.id: row.place for row in rows}


@functools.cache
def _places() -> sa.Select[tuple[str, int]]:
    # Made once: to make it takes longer than to run it, and every look at a job asks.
    order = _order().subquery()
    wanted = order.c.id.in_(sa.bindparam("job_ids", expanding=True))
    return sa.select(order.c.id, order.c.place).where(wanted)


def _order() -> sa.Select[tuple[str, str, int]]:
    waiting = (
        sa.select(
            jobs.c.id,
            jobs.c.owner,
            jobs.c.number,
            sa.func.coalesce(queue_turns.c.turn, 0).label("turn"),
            sa.func.row_number().over(partition_by=jobs.c.owner, order_by=jobs.c.number).label("round"),
        )
        .outerjoin(queue_turns, queue_turns.c.owner == jobs.c.owner)
        .where(jobs.c.state == "queued", is_awake())
        .subquery()
    )
    by = (waiting.c.round, waiting.c.turn, waiting.c.number)
    return sa.select(
        waiting.c.id, waiting.c.owner, sa.func.row_number().over(order_by=by).label("place")
    )

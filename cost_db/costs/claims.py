"""Claims on keys, so that two tuners that need the same cost cause one measurement.

A claim has an *owner* (a text, unique among those that measure now), a *lease* (how long others wait
for its renewal) and a *fence* (a number that grows with each new claim on the key).

Invariants: at most one unexpired claim on a key; a key whose cost is stored is never granted; no fence
is given twice for one key, so a late writer is known by its old one.

Source: M. Kleppmann, "How to do distributed locking" (2016), for fences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from collage.cost_db.clock import database_now
from collage.cost_db.costs.lookups import batches, look_up
from collage.cost_db.costs.row import CostRow
from collage.cost_db.costs.row_mapping import insert_rows, on_conflict
from collage.cost_db.costs.summary import counted
from collage.cost_db.errors import StaleFenceError
from collage.cost_db.tables import claims, costs


@dataclass(frozen=True)
class Claims:
    """The result of a claim."""

    granted: Mapping[str, int]  # digests to measure now, each with its fence
    busy: frozenset[str]  # digests that another owner measures: ask again a little later
    known: Mapping[str, CostRow]  # digests whose cost is there already


def claim(connection: sa.Connection, digests: Sequence[str], owner: str, lease_s: float) -> Claims:
    """Claim the keys that are neither known nor claimed with a valid lease."""
    known = look_up(connection, digests)
    # Sorted: all owners lock in one order, so none waits for another in a circle.
    wanted = sorted(set(digests) - known.keys())
    granted: dict[str, int] = {}
    for batch in batches(wanted):
        granted |= _take(connection, batch, owner, lease_s)
    # Between the look-up and the claim, another owner may have stored and let go: look again.
    late = look_up(connection, list(granted))
    release(connection, list(late), owner)
    granted = {digest: fence for digest, fence in granted.items() if digest not in late}
    known |= late
    return Claims(granted, frozenset(wanted) - granted.keys() - known.keys(), known)


def store(connection: sa.Connection, row: CostRow, fence: int) -> None:
    """Store a measurement and release its claim, both or neither.

    Raises:
        StaleFenceError: the claim was taken over or released.
    """
    held = sa.and_(claims.c.digest == row.digest, claims.c.fence == fence, claims.c.owner.is_not(None))
    let_go = connection.execute(sa.update(claims).where(held).values(owner=None, lease_until=0.0))
    if let_go.rowcount == 0:
        # A repeated write, after the connection broke between commit and answer, has done its work.
        stored = look_up(connection, [row.digest]).get(row.digest)
        # The description is kept once for a fingerprint, so it may be another writer's.
        if stored == replace(row, hardware_description=stored.hardware_description if stored else {}):
            return
        raise StaleFenceError(row.digest, fence)
    # An import may have brought a row; the fresh measurement is preferred.
    with counted(connection, [row.sub_graph]):
        connection.execute(sa.delete(costs).where(costs.c.digest == row.digest))
        insert_rows(connection, [row])


def renew(
    connection: sa.Connection, digests: Sequence[str], owner: str, lease_s: float
) -> frozenset[str]:
    """Lengthen the leases that the owner still has, and return their digests."""
    held = _held(connection, digests, owner)
    for batch in batches(held):
        connection.execute(
            sa.update(claims)
            .where(claims.c.digest.in_(batch))
            .values(lease_until=database_now() + lease_s)
        )
    return frozenset(held)


def release(connection: sa.Connection, digests: Sequence[str], owner: str) -> None:
    """Release claims, so that others need not wait for the leases to end."""
    for batch in batches(_held(connection, digests, owner)):
        connection.execute(
            sa.update(claims).where(claims.c.digest.in_(batch)).values(owner=None, lease_until=0.0)
        )


def _take(
    connection: sa.Connection, digests: Sequence[str], owner: str, lease_s: float
) -> dict[str, int]:
    lease_until = database_now() + lease_s
    insert = on_conflict(connection, claims).values(
        [
            {"digest": digest, "owner": owner, "fence": 1, "lease_until": lease_until}
            for digest in digests
        ]
    )
    statement = insert.on_conflict_do_update(
        index_elements=[claims.c.digest],
        set_={
            "owner": insert.excluded.owner,
            "fence": claims.c.fence + 1,
            "lease_until": insert.excluded.lease_until,
        },
        where=sa.or_(claims.c.owner.is_(None), claims.c.lease_until <= database_now()),
    )
    taken = connection.execute(statement.returning(claims.c.digest, claims.c.fence))
    return {row.digest: row.fence for row in taken}


def _held(connection: sa.Connection, digests: Sequence[str], owner: str) -> list[str]:
    """The owner's claims among the digests, locked in the order in which every writer locks."""
    held: list[str] = []
    for batch in batches(sorted(digests)):
        statement = (
            sa.select(claims.c.digest)
            .where(claims.c.digest.in_(batch), claims.c.owner == owner)
            .order_by(claims.c.digest)
            .with_for_update()  # SQLite has no such words, and needs none
        )
        held += connection.execute(statement).scalars()
    return held

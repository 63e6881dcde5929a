"""The cost database: measured costs and claims.

Safe from many threads and processes. Every call is its own short transaction; a measurement is
committed when `store` returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from collage.cost_db import schema
from collage.cost_db.connections import Connections
from collage.cost_db.costs import browse, claims, lookups, queries, row_mapping, transfer
from collage.cost_db.costs.browse import CostOrder
from collage.cost_db.costs.claims import Claims
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.queries import CostFilter, CostStats
from collage.cost_db.costs.row import CostRow
from collage.cost_db.costs.transfer import ImportResult
from collage.cost_db.page import Page
from collage.cost_db.plain_text import plain
from collage.partitioner.errors import BadInputError

_EXPORT_PAGE = 500
_IMPORT_BATCH = 500
_FORGET_BATCH = 10_000


class CostDatabase:
    """Measured costs, and claims on those being measured.

    Args:
        url: `sqlite:///PATH` (made and upgraded when needed) or `postgresql://…` (upgraded by
            `collage db upgrade` alone).

    Raises:
        BadInputError: the URL is of no known kind.
        SchemaError: the tables are not those of this program.
        DatabaseError: the database cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.connections = Connections(url)
        try:
            schema.ensure(self.connections)
        except BaseException:
            self.connections.close()
            raise

    def close(self) -> None:
        """Give the connections back."""
        self.connections.close()

    def is_up(self) -> bool:
        """Whether the database answers now, without waiting for one that is away."""
        return self.connections.is_up()

    def look_up(self, digests: Sequence[str]) -> dict[str, CostRow]:
        """The known costs among these keys."""
        return self.connections.read(lambda connection: lookups.look_up(connection, digests))

    def points_of(
        self, structures: Sequence[str], targets: Collection[str], hardware: str, protocol: str
    ) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
        """Work and microseconds of what was measured of sub-graphs that are alike but for their sizes.

        Args:
            structures: symbolic fingerprints.
            targets: canonical texts.

        Returns:
            By structure, target and version of the backend.
        """
        return self.connections.read(
            lambda connection: lookups.points_of(connection, structures, targets, hardware, protocol)
        )

    def claim(self, keys: Iterable[CostKey | str], owner: str, lease_s: float) -> Claims:
        """Claim what is neither known nor being measured.

        Args:
            keys: keys or their digests.
            owner: a text unique among all that measure now: a claim that this owner has already is busy
                too.
            lease_s: seconds after which others may take the claims over, unless renewed.
        """
        plain("owner", owner, 200)
        digests = [key if isinstance(key, str) else key.digest for key in keys]
        return self.connections.write(
            lambda connection: claims.claim(connection, digests, owner, lease_s)
        )

    def store(self, row: CostRow, fence: int) -> None:
        """Store a measurement under its claim and release the claim.

        A lease that has ended and was not taken over is still good.

        Raises:
            BadInputError: the row breaks an invariant.
            StaleFenceError: the claim was taken over or released.
        """
        row.check()
        self.connections.write(lambda connection: claims.store(connection, row, fence))

    def renew(self, digests: Sequence[str], owner: str, lease_s: float) -> frozenset[str]:
        """Lengthen leases; returns the digests that the owner still has."""
        return self.connections.write(
            lambda connection: claims.renew(connection, digests, owner, lease_s)
        )

    def release(self, digests: Sequence[str], owner: str) -> None:
        """Release the owner's claims among these."""
        self.connections.write(lambda connection: claims.release(connection, digests, owner))

    def query(self, wanted: CostFilter, after: str | None = None, limit: int = 100) -> Page[CostRow]:
        """A page of costs, newest first.

        Args:
            after: `Page.next` of the page before; None for the first.
            limit: most rows of the page, 1 to 1,000.

        Raises:
            BadInputError: the cursor or the limit is bad.
        """
        return self.connections.read(lambda connection: queries.query(connection, wanted, after, limit))

    def browse(
        self, wanted: CostFilter, order: CostOrder, first: int, limit: int
    ) -> tuple[CostRow, ...]:
        """The wanted costs in an order, from the `first` one on."""
        return self.connections.read(
            lambda connection: browse.browse(connection, wanted, order, first, limit)
        )

    def count(self, wanted: CostFilter) -> int:
        """How many costs are wanted."""
        return self.connections.read(lambda connection: browse.count(connection, wanted))

    def of_sub_graph(self, sub_graph: str) -> tuple[CostRow, ...]:
        """The newest costs of one sub-graph, the fastest first."""
        plain("sub_graph", sub_graph, 200)
        return self.connections.read(lambda connection: browse.of_sub_graph(connection, sub_graph))

    def stats(self) -> CostStats:
        """How many costs there are, by outcome, backend and host."""
        return self.connections.read(queries.stats)

    def export_lines(self, wanted: CostFilter) -> Iterator[str]:
        """The wanted costs as JSON lines, newest first; a page of them at a time."""
        after: str | None = None
        while True:
            page = self.query(wanted, after, _EXPORT_PAGE)
            yield "".join(transfer.write_line(row) + "\n" for row in page.items)
            if (after := page.next) is None:
                return

    def import_lines(self, stream: Iterable[str | bytes]) -> ImportResult:
        """Import JSON lines as `export_lines` writes them; bad ones are refused, and known costs stay.

        Each batch is committed as it is read.
        """
        accepted = good = 0
        refused: list[tuple[int, str]] = []
        batch: list[CostRow] = []

        def flush() -> int:
            inserted = self.connections.write(
                lambda connection: row_mapping.import_rows(connection, batch)
            )
            batch.clear()
            return len(inserted)

        for number, row in transfer.read_lines(stream):
            if isinstance(row, str):
                refused.append((number, row))
                continue
            good += 1
            batch.append(row)
            if len(batch) == _IMPORT_BATCH:
                accepted += flush()
        accepted += flush()
        return ImportResult(accepted, tuple(refused), good - accepted)

    def forget(self, wanted: CostFilter, *, everything: bool = False) -> int:
        """Delete the wanted costs and return how many.

        Where there are any, all stored tunings go too, or those of `wanted.hardware`. A filter that
        allows everything needs `everything`.

        Raises:
            BadInputError: the filter is empty and `everything` is not True.
        """
        if wanted == CostFilter() and not everything:
            raise BadInputError(
                "an empty filter would forget every cost; say so, or name what to forget"
            )
        total = 0
        while True:
            count = self.connections.write(
                lambda connection: queries.forget(connection, wanted, _FORGET_BATCH)
            )
            total += count
            if count < _FORGET_BATCH:
                return total

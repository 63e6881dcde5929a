"""The database's own clock in SQL, as seconds since 1970 with fractions.

Leases end by this one clock, since the clocks of machines differ.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class database_now(FunctionElement[float]):  # noqa: N801 - written in expressions like sa.func.now()
    """The present by the clock of the database server."""

    type = sa.Double()
    inherit_cache = True


@compiles(database_now, "postgresql")
def _postgresql(element: database_now, compiler: SQLCompiler, **_: Any) -> str:
    # Not now(): that is the transaction's start, and a transaction may have waited for a lock.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(database_now, "sqlite")
def _sqlite(element: database_now, compiler: SQLCompiler, **_: Any) -> str:
    # unixepoch('subsec') would need SQLite 3.42.
    return "((julianday('now') - 2440587.5) * 86400.0)"

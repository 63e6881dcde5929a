"""How one database is reached: SQLite in a file, or PostgreSQL.

Invariants: every `read` and every `write` is one short transaction; a write has happened wholly or not
at all when it returns, also when the process is killed in it. Safe from many threads.

A `write` may run its work again after a lost connection or a deadlock. So work must depend on nothing
but the database and its arguments.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from collage.cost_db.errors import DatabaseError, DatabaseUnavailableError
from collage.partitioner.errors import BadInputError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

_READ_ONLY = "collage_read_only"
_BUSY_TIMEOUT_S = 30.0
_MOST_IDLE_S = 5
_REPEATABLE = {"40001", "40P01"}  # serialization failure, deadlock: PostgreSQL rolled back


def default_url() -> str:
    """`COLLAGE_DATABASE_URL`, or a SQLite file in the user's data folder (XDG)."""
    if url := os.environ.get("COLLAGE_DATABASE_URL"):
        return url
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return f"sqlite:///{Path(data_home) / 'collage' / 'costs.db'}"


class DamagedJson(dict[str, Any]):
    """Stands for stored JSON that cannot be read, so that one row never hides the others."""


class Connections:
    """A pool of connections to one database.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/NAME`.
        patience_s: how long to try again when a database that worked is away (a restart).

    Raises:
        BadInputError: the URL is of no known database.
    """

    def __init__(self, url: str, patience_s: float = 30.0) -> None:
        parsed = _parse(url)
        self.url = parsed.render_as_string(hide_password=True)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._patience_s = patience_s
        self._has_worked = False
        self._path: Path | None = None
        self._file_id: tuple[int, int] | None = None
        if self.is_sqlite:
            assert parsed.database is not None
            self._path = Path(parsed.database).expanduser()
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DatabaseError(f"cannot make the folder of database {self.url}: {error}") from None
            self.engine = sa.create_engine(
                parsed.set(database=str(self._path)),
                connect_args={"timeout": _BUSY_TIMEOUT_S},
                json_deserializer=_read_json,
            )
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = sa.create_engine(
                parsed, pool_size=10, max_overflow=20, json_deserializer=_read_json
            )
            event.listen(self.engine, "connect", _prepare_postgresql)
        # Reads are single statements: without BEGIN and ROLLBACK around, each is one round trip.
        options: dict[str, Any] = (
            {_READ_ONLY: True} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        )
        self._reader = self.engine.execution_options(**options)

    def read(self, work: Work[T]) -> T:
        """Run work that only reads; each statement in it sees what is committed then.

        Raises:
            DatabaseUnavailableError: the database is away for longer than `patience_s`.
            DatabaseError: it refused.
        """
        return self._repeat(self._reader, work)

    def write(self, work: Work[T]) -> T:
        """Run work in one transaction and commit it.

        Raises:
            DatabaseUnavailableError: the database is away, or locked, for longer than `patience_s`.
            DatabaseError: it refused; nothing has changed.
        """
        return self._repeat(self.engine, work)

    def is_up(self) -> bool:
        """Whether the database answers now, without waiting for one that is away."""
        try:
            self._check_file()
        except DatabaseUnavailableError:
            return False
        for _ in range(2):  # after a restart the first try finds only that the old connections are dead
            try:
                with self._reader.connect() as connection:
                    connection.execute(sa.text("SELECT 1"))
                return True
            except SQLAlchemyError:
                pass
        return False

    def serialize(self, connection: sa.Connection, name: str) -> None:
        """Let no other transaction that asks for the same name run beside this one, until its end."""
        if not self.is_sqlite:  # SQLite has one writer at a time anyhow
            connection.execute(
                sa.text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"collage {name}"}
            )

    def close(self) -> None:
        """Close all connections; the object can still be used."""
        self.engine.dispose()

    def _repeat(self, engine: sa.Engine, work: Work[T]) -> T:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                self._check_file()
                with engine.connect() as connection, connection.begin():
                    result = work(connection)
                self._check_file()
                self._has_worked = True
                return result
            except SQLAlchemyError as error:
                problem, repeatable = self._judge(error)
                if not repeatable or not self._has_worked or time.monotonic() > deadline:
                    raise problem from error
                time.sleep(0.1)

    def _check_file(self) -> None:
        """Refuse a SQLite file that is not the one opened first: what is written there would be lost.

        Open connections go on with a deleted file, and new ones would make an empty one.
        """
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            if self._file_id is None:
                return  # about to be made
            raise DatabaseUnavailableError(
                f"the file of database {self.url} was deleted while it was open: put it back, or "
                "restore a backup and start again"
            ) from None
        except OSError as error:
            raise DatabaseUnavailableError(f"database {self.url}: {error}") from None
        file_id = (found.st_dev, found.st_ino)
        if self._file_id is None and found.st_size:
            self._file_id = file_id
        elif self._file_id not in (None, file_id):
            raise DatabaseUnavailableError(
                f"the file of database {self.url} was replaced while it was open: start again to use it"
            )

    def _judge(self, error: SQLAlchemyError) -> tuple[DatabaseError, bool]:
        cause = error.orig if isinstance(error, DBAPIError) else error
        text = f"database {self.url}: {str(cause).strip()}"
        if not isinstance(error, DBAPIError):
            return DatabaseError(text), False
        if error.connection_invalidated or getattr(cause, "sqlstate", "") in _REPEATABLE:
            return DatabaseUnavailableError(text), True
        if self.is_sqlite:
            # The busy timeout has passed already.
            locked = _sqlite_code(cause) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            return (DatabaseUnavailableError if locked else DatabaseError)(text), False
        # psycopg tells a failed connect by an OperationalError without a state.
        away = isinstance(error, OperationalError) and getattr(cause, "sqlstate", None) is None
        return (DatabaseUnavailableError if away else DatabaseError)(text), away


def _read_json(text: str | bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return DamagedJson(damaged=str(error))


def _parse(url: str) -> sa.URL:
    help_text = "write sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
        if backend in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
            parsed.get_dialect().import_dbapi()
            return parsed
    except NoSuchModuleError:
        backend = ""
    except SQLAlchemyError:
        raise BadInputError(f"this is no database URL; {help_text}") from None
    except ImportError:
        raise BadInputError(
            "PostgreSQL needs its driver: pip install 'collage-tuner[postgresql]'"
        ) from None
    if backend != "sqlite":
        raise BadInputError(f"databases of kind {parsed.drivername!r} are not known; {help_text}")
    if parsed.database in (None, "", ":memory:"):
        raise BadInputError(
            "a SQLite database in memory cannot be shared between threads and processes; "
            "name a file: sqlite:///PATH"
        )
    return parsed


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    # WAL with NORMAL loses nothing when a process dies; after a power cut the file is sound and
    # may lack the last moments.
    _use_wal(connection)
    for pragma in ("synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; while several processes open a new file, SQLite refuses that without waiting."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _sqlite_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _sqlite_code(error: object) -> int:
    """SQLite's primary result code; the bits above it say more of the same."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _prepare_postgresql(connection: Any, _: object) -> None:
    # A process that is suspended inside a transaction would keep its locks for as long as that lasts.
    connection.execute(f"SET idle_in_transaction_session_timeout = '{_MOST_IDLE_S}s'")
    connection.commit()


def _begin_sqlite(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get(_READ_ONLY):
        # IMMEDIATE: a transaction that reads first and writes later cannot fail half way.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

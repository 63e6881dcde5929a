"""URLs, locks, full disks and databases that are away."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from collage.cost_db import connections
from collage.cost_db.connections import Connections, default_url
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import DatabaseError, DatabaseUnavailableError
from collage.partitioner.errors import BadInputError
from tests.cost_db.builders import key, measured, store_all
from tests.postgres import Postgres


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("costs.db", "no database URL"),
        ("", "no database URL"),
        ("mysql://host/name", "of kind 'mysql' are not known"),
        ("nonsense://host/name", "of kind 'nonsense' are not known"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_a_bad_url_is_refused_with_what_to_write(url: str, problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        CostDatabase(url)


def test_the_default_is_a_file_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COLLAGE_DATABASE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/collage/costs.db"
    CostDatabase(default_url()).close()
    assert (tmp_path / "collage" / "costs.db").exists()
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/.local/share/collage/costs.db"
    monkeypatch.setenv("COLLAGE_DATABASE_URL", "postgresql://host/name")
    assert default_url() == "postgresql://host/name"


def test_sqlite_is_opened_in_wal_mode_with_foreign_keys(tmp_path: Path) -> None:
    database = CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")
    for pragma, value in {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1}.items():
        found = database.connections.read(
            lambda c, p=pragma: c.execute(sa.text(f"PRAGMA {p}")).scalar()
        )
        assert found == value
    database.close()


def test_readers_do_not_wait_for_a_writer(database: CostDatabase) -> None:
    store_all(database, measured(1))
    inside, finish = threading.Event(), threading.Event()

    def write_slowly(connection: sa.Connection) -> None:
        connection.execute(sa.text("UPDATE costs SET host = 'changed'"))
        inside.set()
        finish.wait(10.0)

    writer = threading.Thread(target=lambda: database.connections.write(write_slowly))
    writer.start()
    assert inside.wait(10.0)
    assert database.look_up([key(1).digest]) == {key(1).digest: measured(1)}
    finish.set()
    writer.join()
    assert database.look_up([key(1).digest])[key(1).digest].host == "changed"


def test_a_write_that_fails_changes_nothing(database: CostDatabase) -> None:
    def fail(connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO hardware VALUES ('x', '{}')"))
        connection.execute(sa.text("INSERT INTO hardware VALUES ('x', '{}')"))

    with pytest.raises(DatabaseError):
        database.connections.write(fail)
    count = sa.text("SELECT count(*) FROM hardware")
    assert database.connections.read(lambda connection: connection.execute(count).scalar()) == 0


def test_a_locked_file_is_said_to_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_BUSY_TIMEOUT_S", 0.1)
    database = CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")
    other = sqlite3.connect(tmp_path / "costs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailableError, match="locked"):
        database.claim([key()], "a", 60.0)
    other.execute("ROLLBACK")
    other.close()
    assert database.claim([key()], "a", 60.0).granted
    database.close()


def test_full_disk_is_an_error_and_the_database_recovers(tmp_path: Path) -> None:
    database = CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")
    store_all(database, measured(0))

    @sa.event.listens_for(database.connections.engine, "begin")
    def limit(connection: sa.Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages if full else 1_000_000}")

    full = True
    with pytest.raises(DatabaseError, match="full"):
        for number in range(1, 1_000):
            store_all(database, measured(number, reason=None, samples_us=(1.5,) * 500))
    full = False
    before = database.stats().costs
    store_all(database, measured(2_000))
    assert database.stats().costs == before + 1
    database.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DatabaseError, match="cannot make the folder"):
        CostDatabase(f"sqlite:///{tmp_path / 'file' / 'costs.db'}")


def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "costs.db").write_text(
        "not a database, but long enough to look at it" * 100, encoding="utf-8"
    )
    with pytest.raises(DatabaseError, match="not a database"):
        CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")


def test_unreachable_server_is_reported_at_once_without_password() -> None:
    pytest.importorskip("psycopg")
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailableError) as caught:
        CostDatabase("postgresql://user:hunter2@127.0.0.1:1/name")
    assert time.monotonic() - began < 20
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_name_is_locked_by_one_transaction_at_a_time(database_url: str) -> None:
    shared = Connections(database_url)
    order: list[str] = []

    def hold(who: str) -> None:
        def work(connection: sa.Connection) -> None:
            shared.serialize(connection, "test")
            order.append(f"{who} in")
            time.sleep(0.05)
            order.append(f"{who} out")

        shared.write(work)

    threads = [threading.Thread(target=hold, args=(who,)) for who in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [words.split()[1] for words in order] == ["in", "out"] * 3
    assert [words.split()[0] for words in order[::2]] == [words.split()[0] for words in order[1::2]]
    shared.close()


@pytest.mark.slow
def test_a_suspended_process_does_not_keep_its_locks(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been suspended between two statements of a transaction."""
    monkeypatch.setattr(connections, "_MOST_IDLE_S", 1)
    url = postgres.new_database(upgraded=False)
    suspended, other = Connections(url), Connections(url)
    suspended.write(lambda connection: connection.execute(sa.text("CREATE TABLE t AS SELECT 1 AS a")))
    tries = 0

    def stand_still(connection: sa.Connection) -> None:
        nonlocal tries
        tries += 1
        connection.execute(sa.text("UPDATE t SET a = a + 1"))
        if tries == 1:
            other.write(lambda another: another.execute(sa.text("UPDATE t SET a = a + 10")))
        connection.execute(sa.text("UPDATE t SET a = a + 1"))

    suspended.write(stand_still)
    found = other.read(lambda connection: connection.execute(sa.text("SELECT a FROM t")).scalar_one())
    assert (found, tries) == (13, 2), "what was undone is done again, once"
    suspended.close()
    other.close()

"""Single flight, and sudden death, with real processes."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from tests.cost_db.builders import key, measured
from tests.cost_db.jobs.processes import start
from tests.postgres import Postgres


@pytest.mark.slow
def test_eight_processes_measure_each_of_200_keys_once(database_url: str) -> None:
    CostDatabase(database_url).close()
    tuners = [start("measure_shared", database_url, f"tuner-{n}", 200, 60) for n in range(8)]
    measurements = Counter(number for numbers in _go(tuners) for number in numbers)
    assert measurements == Counter({str(number): 1 for number in range(200)})
    database = CostDatabase(database_url)
    rows = database.look_up([key(number).digest for number in range(200)])
    assert len(rows) == 200
    assert len({row.host for row in rows.values()}) > 1  # the work was shared, not done by one
    assert database.stats().claims == 0
    database.close()


@pytest.mark.slow
def test_the_claims_of_a_killed_process_are_taken_over(database_url: str) -> None:
    CostDatabase(database_url).close()
    dead, alive = (start("measure_shared", database_url, name, 40, 1.0) for name in ("dead", "alive"))
    assert dead.stdout is not None and dead.stdin is not None
    dead.stdout.readline()
    dead.stdin.write("go\n")
    dead.stdin.flush()
    measured_by_dead = [dead.stdout.readline().strip() for _ in range(5)]
    dead.kill()
    measured_by_dead += dead.communicate()[0].split()
    (measured_by_alive,) = _go([alive])
    twice = set(measured_by_dead) & set(measured_by_alive)
    assert set(measured_by_dead) | set(measured_by_alive) == {str(number) for number in range(40)}
    assert len(twice) <= 1  # at most the one that was being measured when the process died


@pytest.mark.slow
def test_a_stopped_process_that_wakes_after_its_lease_is_refused(database_url: str) -> None:
    database = CostDatabase(database_url)
    sleeper = start("claim_and_store", database_url, 0.2)
    assert sleeper.stdout is not None
    assert sleeper.stdout.readline() == "claimed\n"
    os.kill(sleeper.pid, signal.SIGSTOP)
    time.sleep(0.3)
    taken = database.claim([key()], "awake", 60.0).granted[key().digest]
    os.kill(sleeper.pid, signal.SIGCONT)
    assert sleeper.communicate("go\n", timeout=60)[0] == "refused\n"
    database.store(measured(), taken)
    assert database.look_up([key().digest]) == {key().digest: measured()}
    database.close()


@pytest.mark.slow
def test_kill_at_any_moment_loses_nothing_that_was_stored(database_url: str) -> None:
    CostDatabase(database_url).close()
    chance = random.Random(7)
    told: list[int] = []
    for round_number in range(12):
        writer = start("write_forever", database_url, round_number * 1_000_000)
        assert writer.stdout is not None
        told.append(int(writer.stdout.readline()))
        time.sleep(chance.uniform(0.0, 0.1))
        writer.send_signal(signal.SIGKILL)
        told += [
            int(line) for line in writer.communicate()[0].splitlines(keepends=True) if "\n" in line
        ]
    database = CostDatabase(database_url)
    rows = database.look_up([measured(number).digest for number in told])
    assert len(told) > 12
    assert rows == {row.digest: row for row in map(measured, told)}
    # Nothing is half there: every row is whole, and its operators are with it.
    for row in database.query(CostFilter(), limit=1_000).items:
        row.check()
    if database_url.startswith("sqlite"):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            alone = "SELECT count(*) FROM costs WHERE digest NOT IN (SELECT digest FROM cost_operators)"
            assert plain.execute(alone).fetchone() == (0,)
        plain.close()
    database.close()


@pytest.mark.slow
def test_many_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'costs.db'}"
    assert _go([start("open_once", url) for _ in range(16)]) == [["done"]] * 16


@pytest.mark.slow
def test_kill_while_the_tables_are_made_leaves_a_file_that_opens(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(8):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        opener = start("open_once", url)
        assert opener.stdin is not None and opener.stdout is not None
        opener.stdout.readline()
        opener.stdin.write("go\n")
        opener.stdin.flush()
        time.sleep(chance.uniform(0.0, 0.3))
        opener.kill()
        opener.communicate()
        database = CostDatabase(url)
        assert database.stats().costs == 0
        database.close()


@pytest.mark.slow
def test_work_goes_on_when_postgresql_crashes_and_comes_back(postgres: Postgres) -> None:
    database = CostDatabase(postgres.new_database())
    claims = database.claim([key(1), key(2)], "a", 60.0)
    database.store(measured(1), claims.granted[key(1).digest])
    postgres.crash()
    comes_back = threading.Timer(0.5, postgres.start)
    comes_back.start()
    database.store(measured(2), claims.granted[key(2).digest])
    comes_back.join()
    assert database.look_up([key(1).digest, key(2).digest]) == {
        row.digest: row for row in (measured(1), measured(2))
    }
    database.close()


def _go(processes: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Let processes that wait begin at once, and give what each printed until its end."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return printed

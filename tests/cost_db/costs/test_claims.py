"""Looking up, claiming and storing, on both engines."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.costs.transfer import write_line
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import StaleFenceError
from collage.partitioner.errors import BadInputError
from tests.cost_db.builders import infeasible, key, measured, store_all
from tests.postgres import Postgres


def test_stored_cost_comes_back_exactly(database: CostDatabase) -> None:
    rows = [measured(1), infeasible(2)]
    store_all(database, *rows)
    assert database.look_up([row.digest for row in rows] + ["00" * 32]) == {
        row.digest: row for row in rows
    }


def test_json_columns_take_what_text_columns_do_not(database: CostDatabase) -> None:
    row = measured(1, versions={"driver": "\0 é \U0001f600"}, hardware_description={"cpu": ["\0"]})
    store_all(database, row)
    assert database.look_up([row.digest]) == {row.digest: row}


def test_nothing_is_known_of_nothing(database: CostDatabase) -> None:
    assert database.look_up([]) == {}
    claims = database.claim([], "a", 60.0)
    assert (dict(claims.granted), claims.busy, dict(claims.known)) == ({}, frozenset(), {})
    assert database.renew([], "a", 60.0) == frozenset()
    database.release([], "a")


def test_a_key_is_granted_to_one_owner(database: CostDatabase) -> None:
    first = database.claim([key(1), key(2)], "a", 60.0)
    second = database.claim([key(2), key(3)], "b", 60.0)
    assert first.granted == {key(1).digest: 1, key(2).digest: 1}
    assert second.granted == {key(3).digest: 1}
    assert second.busy == {key(2).digest}


def test_an_owner_does_not_get_its_own_claim_twice(database: CostDatabase) -> None:
    database.claim([key()], "a", 60.0)
    again = database.claim([key()], "a", 60.0)
    assert again.busy == {key().digest} and not again.granted


def test_a_stored_key_is_known_to_every_claim(database: CostDatabase) -> None:
    store_all(database, measured())
    claims = database.claim([key()], "b", 60.0)
    assert claims.known == {key().digest: measured()}
    assert not claims.granted and not claims.busy


def test_a_released_claim_is_granted_at_once_with_a_higher_fence(database: CostDatabase) -> None:
    database.claim([key()], "a", 60.0)
    database.release([key().digest], "somebody else")
    assert database.claim([key()], "b", 60.0).busy
    database.release([key().digest], "a")
    assert database.claim([key()], "b", 60.0).granted == {key().digest: 2}


def test_claim_of_a_dead_owner_passes_on_and_its_late_write_is_refused(database: CostDatabase) -> None:
    late = database.claim([key()], "dead", 0.05).granted[key().digest]
    time.sleep(0.1)
    taken = database.claim([key()], "alive", 60.0).granted[key().digest]
    assert taken > late
    with pytest.raises(StaleFenceError) as caught:
        database.store(measured(latency_us=999.0), late)
    assert (caught.value.digest, caught.value.fence) == (key().digest, late)
    assert database.look_up([key().digest]) == {}
    database.store(measured(), taken)
    with pytest.raises(StaleFenceError):
        database.store(measured(latency_us=999.0), late)
    assert database.look_up([key().digest]) == {key().digest: measured()}


def test_late_writer_is_refused_after_the_cost_was_forgotten(database: CostDatabase) -> None:
    late = database.claim([key()], "a", 0.0).granted[key().digest]
    store_all(database, measured())
    database.forget(CostFilter(), everything=True)
    database.claim([key()], "c", 60.0)
    with pytest.raises(StaleFenceError):
        database.store(measured(), late)


def test_a_renewed_claim_is_not_taken_over(database: CostDatabase) -> None:
    digests = [key(1).digest, key(2).digest]
    database.claim([key(1)], "a", 0.0)
    database.claim([key(2)], "b", 60.0)
    assert database.renew(digests, "a", 60.0) == {key(1).digest}
    assert database.claim([key(1)], "b", 60.0).busy == {key(1).digest}


def test_an_ended_lease_that_nobody_took_over_is_still_good(database: CostDatabase) -> None:
    fence = database.claim([key()], "slow", 0.0).granted[key().digest]
    database.store(measured(), fence)
    assert database.look_up([key().digest]) == {key().digest: measured()}


def test_storing_the_same_row_again_is_no_error_but_another_is(database: CostDatabase) -> None:
    fence = database.claim([key()], "a", 60.0).granted[key().digest]
    database.store(measured(), fence)
    database.store(measured(), fence)
    with pytest.raises(StaleFenceError):
        database.store(measured(latency_us=7.0), fence)


def test_local_measurement_replaces_an_imported_row(database: CostDatabase) -> None:
    fence = database.claim([key()], "a", 60.0).granted[key().digest]
    imported = measured(latency_us=999.0, op_types="Gemm")
    assert database.import_lines([write_line(imported)]).accepted == 1
    database.store(measured(), fence)
    assert database.look_up([key().digest]) == {key().digest: measured()}


def test_a_bad_row_is_not_stored(database: CostDatabase) -> None:
    fence = database.claim([key()], "a", 60.0).granted[key().digest]
    with pytest.raises(BadInputError):
        database.store(measured(samples_us=()), fence)
    assert database.look_up([key().digest]) == {}


@pytest.mark.slow
def test_more_keys_than_one_statement_takes(database: CostDatabase) -> None:
    keys = [key(number) for number in range(2_500)]
    assert len(database.claim(keys, "a", 60.0).granted) == 2_500
    assert len(database.claim(keys, "b", 60.0).busy) == 2_500
    database.release([k.digest for k in keys], "a")
    assert set(database.claim(keys, "b", 60.0).granted.values()) == {2}


@pytest.mark.slow
def test_threads_share_one_database(database: CostDatabase) -> None:
    keys = [key(number) for number in range(40)]
    granted: list[str] = []

    def tune(owner: str) -> None:
        for one in keys:
            claims = database.claim([one], owner, 60.0)
            for digest, fence in claims.granted.items():
                granted.append(digest)
                database.store(measured(key=one), fence)

    threads = [threading.Thread(target=tune, args=(f"owner {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == sorted(k.digest for k in keys)
    assert len(database.look_up([k.digest for k in keys])) == 40


def test_thousand_keys_are_one_statement_without_a_transaction(database: CostDatabase) -> None:
    statements: list[str] = []
    digests = [key(number).digest for number in range(1_000)]
    database.look_up(digests[:1])
    engine = database.connections.engine
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    database.look_up(digests)
    assert len(statements) == 1 and statements[0].startswith("SELECT")


@pytest.mark.slow
def test_a_thousand_keys_are_one_round_trip_on_the_wire(postgres: Postgres, tmp_path: Path) -> None:
    database = CostDatabase(postgres.new_database())
    digests = [key(number).digest for number in range(1_000)]
    database.look_up(digests[:1])  # connects; one connection is in the pool from now on
    trace = tmp_path / "trace"
    raw = database.connections.engine.raw_connection()
    wire = raw.driver_connection.pgconn  # type: ignore[union-attr]
    with trace.open("wb") as file:
        wire.trace(file.fileno())
        raw.close()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        os.ftruncate(file.fileno(), 0)  # what giving the connection back has sent
        database.look_up(digests)
        wire.untrace()
    sent = [line.split("\t") for line in trace.read_text(encoding="utf-8").splitlines()]
    asked = [fields for fields in sent if "F" in fields and any(f in ("Sync", "Query") for f in fields)]
    assert len(asked) == 1, asked
    database.close()

"""Tuning records: kept, found, replaced, and forgotten with the costs that they may rest on."""

from __future__ import annotations

from dataclasses import replace

from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.cost_db.tunings import TuningRecord, TuningStore
from tests.cost_db.builders import START, measured, store_all

RECORD = TuningRecord(
    digest="12" * 32,
    hardware="hardware-a",
    limit_s=0.1 + 0.2,
    plan='{"nodes": ["\\u0000 é"]}',
    report={
        "latency_us": 0.1 + 0.2,
        "partitions": [{"nodes": ["\0", "é", "\U0001f600"]}],
        "front": None,
    },
    created_at=START,
)


def test_a_record_comes_back_as_it_was(database: CostDatabase) -> None:
    tunings = TuningStore(database)
    assert tunings.find(RECORD.digest) is None
    tunings.keep(RECORD)
    assert tunings.find(RECORD.digest) == RECORD
    assert tunings.find("34" * 32) is None


def test_the_newest_record_takes_the_place_of_an_older_one(database: CostDatabase) -> None:
    tunings = TuningStore(database)
    other = replace(RECORD, digest="34" * 32)
    newer = replace(RECORD, limit_s=150.0, plan="{}", report={})
    for record in (RECORD, other, newer):
        tunings.keep(record)
    assert tunings.find(RECORD.digest) == newer
    assert tunings.find(other.digest) == other


def test_forgetting_costs_forgets_what_may_rest_on_them(database: CostDatabase) -> None:
    tunings = TuningStore(database)
    elsewhere = replace(RECORD, digest="34" * 32, hardware="hardware-b")
    store_all(database, measured(1))
    for record in (RECORD, elsewhere):
        tunings.keep(record)
    assert database.forget(CostFilter(hardware="hardware-a")) == 1
    assert tunings.find(RECORD.digest) is None
    assert database.forget(CostFilter(backend="openvino")) == 0
    assert tunings.find(elsewhere.digest) == elsewhere
    store_all(database, measured(2))
    assert database.forget(CostFilter(backend="openvino")) == 1
    assert tunings.find(elsewhere.digest) is None

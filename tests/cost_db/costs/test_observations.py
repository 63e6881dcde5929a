"""What was seen of parts, and what searches gained: kept, replaced, and forgotten with the costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from collage.cost_db.costs.observations import Gain, Observation, ObservationStore
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from tests.cost_db.builders import START, measured, store_all

ROW = Observation(
    hardware="hardware-a",
    target="openvino -threads=2",
    sub_graph="12" * 32,
    version="2026.4",
    model="ab" * 32,
    is_whole=False,
    latency_us=0.1 + 0.2,
    edition=1,
    features=(0.1, 1e-9, 25.0),
    created_at=START,
)
GAIN = Gain("hardware-a", "ab" * 32, "mnn, openvino", 0.1, 0.02, ("mnn",), START)


def test_observations_come_back_the_newest_first(database: CostDatabase) -> None:
    store = ObservationStore(database.connections)
    later = replace(ROW, sub_graph="34" * 32, created_at=START + timedelta(seconds=1))
    elsewhere = replace(ROW, hardware="hardware-b")
    older = replace(ROW, sub_graph="56" * 32, edition=0)
    store.keep([ROW, later, elsewhere, older])
    assert store.newest("hardware-a", edition=1) == (later, ROW)
    assert store.count("hardware-a", edition=1) == 2
    assert store.newest("hardware-c", edition=1) == ()


def test_a_newer_observation_takes_the_place_of_an_older_one(database: CostDatabase) -> None:
    store = ObservationStore(database.connections)
    store.keep([ROW])
    newer = replace(ROW, latency_us=7.0, version="2026.5", features=(1.0,))
    # Repeated blocks of a model are one part.
    store.keep([replace(newer, latency_us=6.0), newer])
    assert store.newest("hardware-a", edition=1) == (newer,)


def test_many_observations_are_kept_at_once(database: CostDatabase) -> None:
    store = ObservationStore(database.connections)
    store.keep([replace(ROW, sub_graph=f"{i:064x}") for i in range(333)])
    assert store.count("hardware-a", edition=1) == 333


def test_gains_are_of_the_same_targets(database: CostDatabase) -> None:
    store = ObservationStore(database.connections)
    other = replace(GAIN, model="cd" * 32, gained=0.0)
    newer = replace(GAIN, gained=0.03)
    for gain in (GAIN, other, newer, replace(GAIN, targets="openvino")):
        store.keep_gain(gain)
    assert store.gains("hardware-a", "mnn, openvino") == (newer, other)


def test_forgetting_costs_forgets_what_was_seen_there(database: CostDatabase) -> None:
    store = ObservationStore(database.connections)
    store_all(database, measured(1))
    store.keep([ROW, replace(ROW, hardware="hardware-b")])
    store.keep_gain(GAIN)
    assert database.forget(CostFilter(hardware="hardware-a")) == 1
    assert store.count("hardware-a", edition=1) == 0
    assert store.gains("hardware-a", GAIN.targets) == ()
    assert store.count("hardware-b", edition=1) == 1

"""What a region may take by what is stored of it at other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collage.cost_db.costs.key import CostKey
from collage.cost_db.database import CostDatabase
from collage.costs.other_sizes import expected_at_other_sizes
from collage.costs.work import work_of
from collage.partitioner.graph.fingerprint import fingerprint, symbolic_fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.cost_db.builders import measured, store_all
from tests.partitioner.graphs import text_model

TARGET = Target("null")
SIZES = (100, 200, 400)
LINE = {size: 10.0 + size for size in SIZES}
BEND = {100: 10.0, 200: 400.0, 400: 410.0}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CostDatabase]:
    made = CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")
    yield made
    made.close()


def _index(size: int, op: str = "Relu") -> GraphIndex:
    return text_model(f"g (float[{size}] x) => (float[{size}] y) {{ a = {op}(x)  y = Exp(a) }}").index


def _key(index: GraphIndex, **changes: str) -> CostKey:
    own = CostKey(fingerprint(index, index.all_nodes), "null", "1", "hardware-a", "protocol-1")
    return replace(own, **changes)


def _store(database: CostDatabase, latencies_us: dict[int, float]) -> None:
    for size, us in latencies_us.items():
        index = _index(size)
        nodes = index.all_nodes
        structure, work = symbolic_fingerprint(index, nodes), work_of(index, nodes)
        own = {"structure": structure, "work": work, "latency_us": us}
        store_all(database, measured(key=_key(index), **own))


def _expected(database: CostDatabase, index: GraphIndex, **changes: str) -> float | None:
    region = index.all_nodes, TARGET
    return expected_at_other_sizes(database, index, {region: _key(index, **changes)}).get(region)


@pytest.mark.parametrize(("size", "us"), [(100, 110.0), (150, 160.0), (300, 310.0)])
def test_a_size_between_others_is_expected_on_their_line(
    database: CostDatabase, size: int, us: float
) -> None:
    _store(database, LINE)
    assert _expected(database, _index(size)) == pytest.approx(us)


@pytest.mark.parametrize("size", [99, 401])
def test_a_size_outside_of_the_others_is_not_expected(database: CostDatabase, size: int) -> None:
    _store(database, LINE)
    assert _expected(database, _index(size)) is None


def test_sizes_that_do_not_lie_on_a_line_say_nothing(database: CostDatabase) -> None:
    _store(database, BEND)
    assert _expected(database, _index(300)) is None


def test_two_sizes_say_nothing(database: CostDatabase) -> None:
    _store(database, {100: 110.0, 400: 410.0})
    assert _expected(database, _index(300)) is None


@pytest.mark.parametrize("changed", ["target", "backend_version", "hardware", "protocol"])
def test_only_sizes_of_the_same_circumstances_count(database: CostDatabase, changed: str) -> None:
    _store(database, LINE)
    assert _expected(database, _index(300), **{changed: "another"}) is None


def test_another_region_is_not_expected(database: CostDatabase) -> None:
    _store(database, LINE)
    assert _expected(database, _index(300, "Sqrt")) is None


def test_nothing_unknown_asks_nothing(database: CostDatabase) -> None:
    database.close()
    assert expected_at_other_sizes(database, _index(300), {}) == {}

"""The summary of costs: what it says, and that it is always what costs say."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from datetime import timedelta
from io import StringIO

import pytest

from collage.cost_db.atlas import AtlasStore, Cell, RegionFacts
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.costs.row import CostRow
from collage.cost_db.database import CostDatabase
from tests.cost_db.builders import START, measured, store_all

FACTS = [RegionFacts(f"region {i}", "Conv", "4-D 3x3", "float32") for i in range(3)]


def row(region: int, target: str, latency_us: float, version: str = "1", second: int = 0) -> CostRow:
    key = CostKey(f"region {region}", target, version, "hardware-a", "protocol-1")
    return measured(
        key=key,
        latency_us=latency_us,
        op_types="Conv",
        node_count=1,
        node_times_us=(),
        model_sha256=f"{region:064x}",
        created_at=START + timedelta(seconds=second),
    )


def cells(database: CostDatabase) -> dict[str, Cell]:
    return {cell.target: cell for cell in AtlasStore(database).cells()[0]}


def test_times_are_over_the_fastest_target_of_each_region(database: CostDatabase) -> None:
    AtlasStore(database).describe(FACTS)
    times = [(0, "mnn", 10.0), (0, "ncnn", 20.0), (1, "mnn", 40.0), (1, "ncnn", 10.0), (2, "mnn", 5.0)]
    store_all(database, *(row(*each) for each in times))
    found = cells(database)
    assert found["mnn"].ratio == pytest.approx(2.0) and found["ncnn"].ratio == pytest.approx(2**0.5)
    assert (found["mnn"].regions, found["mnn"].models, found["mnn"].fastest) == (2, 2, 1)
    assert found["mnn"].shape_class == "4-D 3x3"
    low, high = found["mnn"].interval or (0, 0)
    assert low < 2.0 < high and math.log(high / low) == pytest.approx(2 * 1.96 * math.log(4) / 2)


def test_newer_costs_change_the_summary(database: CostDatabase) -> None:
    AtlasStore(database).describe(FACTS)
    store_all(database, row(0, "mnn", 10.0), row(0, "ncnn", 20.0))
    assert cells(database)["ncnn"].ratio == pytest.approx(2.0)
    store_all(database, row(0, "ncnn", 5.0, version="2", second=1000))
    found = cells(database)
    assert found["ncnn"].ratio == pytest.approx(1.0) and found["mnn"].ratio == pytest.approx(2.0)
    assert AtlasStore(database).refresh() is False


def test_a_large_summary_may_be_an_hour_old(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.cost_db.atlas._MANY", 2)
    store_all(database, row(0, "mnn", 10.0), row(0, "ncnn", 20.0))
    assert cells(database)["ncnn"].regions == 1
    store_all(database, row(1, "mnn", 10.0, second=9), row(1, "ncnn", 20.0, second=9))
    assert cells(database)["ncnn"].regions == 1
    assert AtlasStore(database).refresh(fresh=True) is True
    assert cells(database)["ncnn"].regions == 2
    monkeypatch.setattr("collage.cost_db.atlas._YOUNG", timedelta(0))
    store_all(database, row(2, "mnn", 10.0, second=99), row(2, "ncnn", 20.0, second=99))
    assert cells(database)["ncnn"].regions == 3


def test_forgotten_costs_are_forgotten_here_too(database: CostDatabase) -> None:
    store_all(database, row(0, "mnn", 10.0), row(0, "ncnn", 20.0))
    assert len(cells(database)) == 2
    database.forget(CostFilter(target="ncnn"))
    assert cells(database) == {}
    database.forget(CostFilter(), everything=True)
    assert cells(database) == {}


def test_imported_costs_that_are_older_count(database: CostDatabase) -> None:
    store_all(database, row(0, "mnn", 10.0, second=9000))
    assert cells(database) == {}
    other = row(0, "ncnn", 20.0)
    from collage.cost_db.costs.transfer import write_line

    database.import_lines(StringIO(write_line(other) + "\n"))
    assert cells(database)["ncnn"].ratio == pytest.approx(2.0)


def test_costs_without_known_shapes_are_classed_by_operators(database: CostDatabase) -> None:
    store_all(database, row(0, "mnn", 10.0), row(0, "ncnn", 20.0))
    assert astuple(cells(database)["mnn"])[1:4] == ("Conv", "unknown", "unknown")


def test_parts_of_models_are_left_out(database: CostDatabase) -> None:
    large = [replace(row(0, target, 10.0), node_count=9) for target in ("mnn", "ncnn")]
    store_all(database, *large)
    assert cells(database) == {}

"""The summary of costs: what it says, and that it is always what costs say."""

from __future__ import annotations

import math
import random
from dataclasses import astuple, replace
from datetime import timedelta
from io import StringIO

import pytest

from collage.cost_db.atlas import AtlasStore, Cell, RegionFacts
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.costs.row import CostRow
from collage.cost_db.costs.transfer import write_line
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
    found = AtlasStore(database).summary()
    assert found.is_whole
    return {cell.target: cell for cell in found.cells}


def counted_anew(database: CostDatabase) -> dict[str, Cell]:
    """The same of a summary that is made from all costs."""
    AtlasStore(database).forget()
    AtlasStore(database).count_all()
    return cells(database)


def same(found: dict[str, Cell], other: dict[str, Cell]) -> bool:
    """Whether two summaries say the same, but for rounding."""
    rounded = [
        {
            target: (*astuple(cell)[:8], round(cell.log_sum, 9), round(cell.log_square_sum, 9))
            for target, cell in each.items()
        }
        for each in (found, other)
    ]
    return rounded[0] == rounded[1]


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


@pytest.mark.slow
def test_costs_count_as_they_are_stored_like_all_at_once(database: CostDatabase) -> None:
    """Classes that come late, versions, measurements in place of others and imports."""
    generator, targets = random.Random(3), ("mnn", "ncnn", "openvino", "onnxruntime")
    store = AtlasStore(database)
    store.describe([RegionFacts(f"region {i}", "Conv", "4-D 3x3", "float32") for i in range(0, 12, 3)])
    rows = [
        row(region, target, generator.uniform(1, 100), version, second)
        for second, (region, target, version) in enumerate(
            (region, target, version)
            for region in range(12)
            for target in targets
            for version in ("1", "2")
            if generator.random() < 0.7
        )
    ]
    generator.shuffle(rows)
    store_all(database, *rows[::2])
    database.import_lines(StringIO("".join(write_line(each) + "\n" for each in rows)))
    store.describe([RegionFacts(f"region {i}", "Gemm", "2-D", "float32") for i in range(12)])
    again = [replace(each, latency_us=generator.uniform(1, 100)) for each in rows[:9]]
    claims = database.claim([each.digest for each in again], "other", 60.0)
    assert not claims.granted  # known costs are not measured again
    kept = {(c.kind, c.target): c for c in store.summary().cells}
    assert {kind for kind, _ in kept} == {"Conv", "Gemm"}
    store.forget()
    assert not store.summary().is_whole and store.summary().cells == ()
    store.count_all()
    anew = {(c.kind, c.target): c for c in store.summary().cells}
    assert kept.keys() == anew.keys()
    for place, cell in anew.items():
        assert astuple(cell)[:8] == astuple(kept[place])[:8]
        assert astuple(cell)[8:] == pytest.approx(astuple(kept[place])[8:], abs=1e-9)


def test_costs_stored_while_others_are_counted_count_once(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.cost_db.atlas._COUNTED_AT_ONCE", 4)
    store = AtlasStore(database)
    store_all(database, *(row(i, target, 10.0 + i) for i in range(8) for target in ("mnn", "ncnn")))
    store.forget()
    store.count_all(until=lambda: True)
    some = store.summary()
    assert not some.is_whole and 0 < some.cells[0].regions < 8
    # One of these is counted already, the other is not.
    for i in (0, 7):
        store_all(database, row(i, "openvino", 1.0 + i, second=50))
    store.count_all()
    found = cells(database)
    assert same(found, counted_anew(database))
    assert (found["mnn"].regions, found["openvino"].regions) == (8, 2)


def test_forgotten_costs_are_forgotten_here_too(database: CostDatabase) -> None:
    store_all(database, row(0, "mnn", 10.0), row(0, "ncnn", 20.0))
    assert len(cells(database)) == 2
    database.forget(CostFilter(target="ncnn"))
    assert not AtlasStore(database).summary().is_whole
    AtlasStore(database).count_all()
    assert cells(database) == {}
    database.forget(CostFilter(), everything=True)
    assert cells(database) == {}


def test_imported_costs_that_are_older_count(database: CostDatabase) -> None:
    store_all(database, row(0, "mnn", 10.0, second=9000))
    assert cells(database) == {}
    other = row(0, "ncnn", 20.0)
    database.import_lines(StringIO(write_line(other) + "\n"))
    assert cells(database)["ncnn"].ratio == pytest.approx(2.0)


def test_costs_without_known_shapes_are_classed_by_operators(database: CostDatabase) -> None:
    store_all(database, row(0, "mnn", 10.0), row(0, "ncnn", 20.0))
    assert astuple(cells(database)["mnn"])[1:4] == ("Conv", "unknown", "unknown")


def test_parts_of_models_are_left_out(database: CostDatabase) -> None:
    large = [replace(row(0, target, 10.0), node_count=9) for target in ("mnn", "ncnn")]
    store_all(database, *large)
    assert cells(database) == {}

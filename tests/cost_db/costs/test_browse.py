"""Costs in any order, counted, and by sub-graph."""

from __future__ import annotations

from collage.cost_db.costs.browse import COST_ORDERS
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from tests.cost_db.builders import infeasible, key, measured, store_all


def test_costs_are_sorted_counted_and_paged(database: CostDatabase) -> None:
    other = measured(7, key=key(0, "mnn"))
    store_all(database, measured(0), measured(3), other, infeasible(9))
    assert database.count(CostFilter()) == 4 and database.count(CostFilter(backend="mnn")) == 1
    slowest = database.browse(CostFilter(), "slowest", 0, 10)
    assert [row.latency_us and round(row.latency_us) for row in slowest] == [7, 3, 0, None]
    assert database.browse(CostFilter(), "fastest", 1, 1) == (slowest[1],)
    for order in COST_ORDERS:
        assert len(database.browse(CostFilter(), order, 0, 10)) == 4
    found = database.of_sub_graph("sub-graph 0")
    assert [row.target for row in found] == ["openvino -precision=bf16", "mnn"]

"""Filters, pages, sums and forgetting, on both engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.costs.row import CostRow
from collage.cost_db.database import CostDatabase
from collage.cost_db.page import Page, cursor
from collage.partitioner.errors import BadInputError
from tests.cost_db.builders import START, infeasible, key, measured, store_all

NEWER = replace(key(4), backend_version="2027.0")
ROWS = (
    measured(0),
    measured(1, op_types="Conv", host="host-b"),
    measured(2, op_types="Gemm Relu", model_sha256="cd" * 32),
    measured(3, key=key(3, "onnxruntime"), op_types="Conv Gemm Relu"),
    infeasible(
        4, key=replace(key(4), backend_version="2027.0"), created_at=START + timedelta(seconds=4)
    ),
    measured(5, key=replace(key(5), hardware="hardware-b"), hardware_description={"gpu": "H200"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (CostFilter(), [5, 4, 3, 2, 1, 0]),
        (CostFilter(target="openvino -precision=bf16"), [5, 4, 2, 1, 0]),
        (CostFilter(backend="openvino"), [5, 4, 2, 1, 0]),
        (CostFilter(backend="open"), []),
        (CostFilter(backend_version="2027.0"), [4]),
        (CostFilter(op_types=("Conv",)), [5, 3, 1, 0]),
        (CostFilter(op_types=("Relu", "Conv")), [5, 3, 0]),
        (CostFilter(op_types=("Conv", "Gemm", "Relu"), backend="onnxruntime"), [3]),
        (CostFilter(op_types=("Con",)), []),
        (CostFilter(host="host-b"), [1]),
        (CostFilter(hardware="hardware-b"), [5]),
        (CostFilter(model="cd" * 32), [2]),
        (CostFilter(since=START + timedelta(seconds=3)), [5, 4, 3]),
        (CostFilter(until=START + timedelta(seconds=3)), [2, 1, 0]),
        (CostFilter(op_types=("Conv",), until=START + timedelta(seconds=3)), [1, 0]),
        (CostFilter(outcome="infeasible"), [4]),
        (CostFilter(outcome="measured", host="host-a", op_types=("Gemm",)), [3, 2]),
    ],
)
def test_filters_find_rows_newest_first_on_pages_of_any_size(
    database: CostDatabase, wanted: CostFilter, numbers: list[int]
) -> None:
    store_all(database, *ROWS)
    expected = tuple(ROWS[number] for number in numbers)
    assert database.query(wanted) == Page(expected, None)
    for limit in (1, 2, 3):
        assert _all_pages(database, wanted, limit) == expected


def test_rows_of_one_moment_are_on_one_page_each_exactly_once(database: CostDatabase) -> None:
    rows = [measured(number, created_at=START) for number in range(7)]
    store_all(database, *rows)
    found = _all_pages(database, CostFilter(), 2)
    assert sorted(row.digest for row in found) == sorted(row.digest for row in rows)


def test_pages_continue_while_rows_come_and_go(database: CostDatabase) -> None:
    store_all(database, *ROWS)
    first = database.query(CostFilter(), limit=2)
    store_all(database, measured(9, created_at=START + timedelta(days=1)))
    database.forget(CostFilter(backend_version="2027.0"))
    assert database.query(CostFilter(), first.next).items == (ROWS[3], ROWS[2], ROWS[1], ROWS[0])


def test_times_in_any_zone_mean_the_same_moment(database: CostDatabase) -> None:
    store_all(database, *ROWS)
    zone = timezone(timedelta(hours=5, minutes=30))
    assert database.query(CostFilter(since=ROWS[5].created_at.astimezone(zone))).items == (ROWS[5],)
    elsewhere = measured(8, created_at=datetime(2026, 5, 1, 1, 0, tzinfo=zone))
    store_all(database, elsewhere)
    stored = database.look_up([elsewhere.digest])[elsewhere.digest]
    assert stored == elsewhere and stored.created_at.tzinfo == UTC


@pytest.mark.parametrize(
    "after",
    ["", "x", "é", "AAAA", cursor(1), cursor("2026", 1), cursor("never", "x"), cursor("a\0", "b")],
)
def test_a_bad_cursor_is_bad_input(database: CostDatabase, after: str) -> None:
    with pytest.raises(BadInputError, match="cursor"):
        database.query(CostFilter(), after)


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_bad_limit_is_bad_input(database: CostDatabase, limit: int) -> None:
    with pytest.raises(BadInputError, match="limit"):
        database.query(CostFilter(), limit=limit)


def test_a_filter_refuses_what_no_database_takes() -> None:
    with pytest.raises(BadInputError, match="host has a character"):
        CostFilter(host="a\0b")
    with pytest.raises(BadInputError, match="op_types has a character"):
        CostFilter(op_types=("Conv", "\ud800"))
    with pytest.raises(BadInputError, match="since has no time zone"):
        CostFilter(since=datetime(2026, 1, 1))


def test_stats_count_everything(database: CostDatabase) -> None:
    empty = database.stats()
    assert (empty.costs, empty.oldest, empty.newest, empty.by_outcome) == (0, None, None, {})
    store_all(database, *ROWS)
    database.claim([key(100), key(101)], "a", 60.0)
    stats = database.stats()
    assert stats.costs == 6
    assert stats.by_outcome == {"infeasible": 1, "measured": 5}
    assert stats.by_backend == {"onnxruntime": 1, "openvino": 5}
    assert stats.by_host == {"host-a": 5, "host-b": 1}
    assert stats.claims == 2
    assert (stats.oldest, stats.newest) == (START, START + timedelta(seconds=5))


def test_forgetting_by_filter_leaves_the_rest(database: CostDatabase) -> None:
    store_all(database, *ROWS)
    assert database.forget(CostFilter(op_types=("Conv", "Relu"))) == 3
    assert database.query(CostFilter()).items == (ROWS[4], ROWS[2], ROWS[1])
    assert database.query(CostFilter(op_types=("Conv",))).items == (ROWS[1],)


def test_forgetting_everything_must_be_said(database: CostDatabase) -> None:
    store_all(database, *ROWS)
    with pytest.raises(BadInputError, match="empty filter"):
        database.forget(CostFilter())
    assert database.forget(CostFilter(), everything=True) == 6
    assert database.stats().costs == 0


def _all_pages(database: CostDatabase, wanted: CostFilter, limit: int) -> tuple[CostRow, ...]:
    rows: list[CostRow] = []
    after = None
    while True:
        page = database.query(wanted, after, limit)
        assert 0 < len(page.items) <= limit or page.next is None
        rows += page.items
        if (after := page.next) is None:
            return tuple(rows)

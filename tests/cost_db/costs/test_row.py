"""Rows of costs: which are accepted, and why others are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from collage.cost_db.costs.row import CostRow
from collage.partitioner.cost import Infeasible, Measured
from collage.partitioner.errors import BadInputError
from tests.cost_db.builders import infeasible, key, measured


def test_good_rows_are_accepted() -> None:
    measured().check()
    infeasible().check()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (replace(measured(), digest="00" * 32), "digest is not that of its key"),
        (measured(key=key(target="")), "target is empty"),
        (measured(key=key(target="x" * 501)), "target is longer than"),
        (measured(key=key(target="openvino\0")), "target has a character"),
        (measured(latency_us=None), "no positive latency_us"),
        (measured(latency_us=0.0), "no positive latency_us"),
        (measured(latency_us=float("nan")), "latency_us is negative or not finite"),
        (measured(error=float("inf")), "error is negative or not finite"),
        (measured(samples_us=()), "no samples_us"),
        (measured(samples_us=(1.0, -1.0)), "samples_us has a value"),
        (measured(node_times_us=(1.0,)), "node_times_us is neither"),
        (measured(reason="but why"), "has a reason"),
        (measured(op_types="Relu Conv"), "op_types are not sorted"),
        (measured(op_types="Conv Conv"), "op_types are not sorted"),
        (measured(op_types="Conv  Relu"), "op_types are not sorted"),
        (measured(node_count=-1, node_times_us=()), "node_count is negative"),
        (measured(model_sha256="abc"), "model_sha256 is no SHA-256"),
        (measured(structure="abc"), "structure is no SHA-256"),
        (measured(work=-1.0), "work is negative or not finite"),
        (measured(work=float("nan")), "work is negative or not finite"),
        (measured(created_at=datetime(2026, 1, 1)), "created_at has no time zone"),
        (infeasible(reason=None), "has no reason"),
        (infeasible(latency_us=1.0), "infeasible row has latency_us"),
        (replace(infeasible(), outcome="unknown"), "outcome is neither"),  # type: ignore[arg-type]
    ],
)
def test_bad_rows_are_refused_with_their_field(row: CostRow, problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        row.check()


def test_any_reason_of_a_native_runtime_can_be_kept() -> None:
    row = infeasible(reason="bad\0 bytes \ud800 " + "x" * 100_000)
    row.check()
    assert row.reason is not None
    assert row.reason.startswith("bad bytes ?")
    assert len(row.reason) <= 4_000


def test_a_row_is_a_cost_for_the_search() -> None:
    assert measured(1).cost == Measured(0.1 + 0.2 + 1, 0.01, 4)
    assert infeasible().cost == Infeasible("crash: signal 11")
    assert measured().backend == "openvino"
    assert measured().key == key()

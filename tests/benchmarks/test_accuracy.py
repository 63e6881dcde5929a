"""The benchmark of error budgets: which targets its table counts as reduced."""

from __future__ import annotations

import pytest

from benchmarks.accuracy import _BUDGETS, _table


@pytest.mark.parametrize(
    ("least", "second", "reduced"),
    [
        (1e-6, 4e-4, ["1.0e-02"]),
        (1e-6, 8e-4, ["8.0e-04", "1.0e-02"]),
        (8e-4, 8.05e-4, ["1.0e-02"]),  # rounding decides elements
    ],
)
def test_what_counts_as_reduced_is_what_the_tuner_says(
    least: float, second: float, reduced: list[str]
) -> None:
    errors = {"onnxruntime": least, "openvino": second, "openvino -precision=bf16": 1e-2}
    singles = {name: {"latency_us": 100.0, "error": e, "exactness": e} for name, e in errors.items()}
    found = {"speedup": 1.5, "error": 1e-3, "partitions": []}
    budgets = {f"{budget:g}": found for budget in _BUDGETS}
    row = {"singles": singles, "best_fp32": "onnxruntime", "budgets": budgets, "tuning_seconds": {}}
    table = _table({"nms": row}, {"metric": "max", "hardware": "a machine"})
    (line,) = [line for line in table.splitlines() if line.startswith("| nms |")]
    assert line.split(" | ")[2] == ", ".join(f"1.00 at {error}" for error in reduced)
    for single in singles.values():  # as rows were written before
        del single["exactness"]
    assert line in _table({"nms": row}, {"metric": "max", "hardware": "a machine"})

"""Models of the breadth benchmark: sizes by rule, outcomes by what happened, operators that ONNX Runtime runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.breadth import __main__ as breadth
from benchmarks.breadth.one import tuned
from benchmarks.breadth.operators import contrib_models, zoo_models
from benchmarks.breadth.packages import Entry, sizes
from benchmarks.breadth.plain import run_plainly
from collage.backends.sandbox.run import ChildLimits, run_in_child, send_message
from tests.fuzzing.check import Outcome, check
from tests.fuzzing.graphs import Case


def _model(*inputs: tuple[str, list[object]]) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs
    ]
    return helper.make_model(helper.make_graph([], "g", values, []))


def test_free_dimensions_get_sizes_by_the_rule() -> None:
    model = _model(
        ("image", ["batch", 3, "d1", None]),
        ("ids", ["n", "sequence"]),
        ("past", [1, 8, "past_length", 64]),
        ("frames", ["seq_len", 576]),
        ("spectrum", ["n", 1, "frames", 257]),
    )
    found = sizes(model)
    assert found == {
        "batch": 1, "d1": 320, "image:3": 320, "n": 1, "sequence": 64, "past_length": 8, "seq_len": 64, "frames": 64,
    }  # fmt: skip


def test_onnxruntime_runs_each_of_its_own_operators(tmp_path: Path) -> None:
    found = list(contrib_models(tmp_path))
    assert len(found) > 60
    for entry in found:
        assert run_plainly(entry.path, dict(entry.dims), None).endswith(" ms"), entry.name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_operators_of_onnxruntime_are_right_as_partitions(tmp_path: Path) -> None:
    """Each goes the whole way: ingest, a plan over runtimes, the artifact, and a session."""
    cases = [
        Case(seed, entry.path.read_bytes(), (64,))
        for seed, entry in enumerate(contrib_models(tmp_path))
    ]
    found: list[Outcome] = []
    run_in_child(check_here, cases, limits=ChildLimits(timeout_s=600), on_message=found.append)
    kinds = {kind: [o for o in found if o.kind == kind] for kind in {o.kind for o in found}}
    assert kinds.keys() <= {"passed", "unusable"}, kinds
    # Some want other numbers than random ones.
    assert len(kinds["passed"]) > 0.8 * len(cases)


def check_here(cases: list[Case]) -> None:
    """The child's side."""
    for case in cases:
        send_message(check(case))


@pytest.mark.slow
def test_zoo_is_spread_over_the_suite_and_brings_inputs(tmp_path: Path) -> None:
    found = list(zoo_models(tmp_path, 12))
    assert 10 <= len(found) <= 12
    assert len({entry.name[:8] for entry in found}) > 5
    assert sum(bool(entry.inputs) for entry in found) > len(found) / 2


@pytest.mark.slow
def test_outcome_is_refused_with_the_reason_where_the_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    request = {
        "path": str(tmp_path / "m.onnx"),
        "targets": ["onnxruntime"],
        "dims": {},
        "inputs": None,
        "time_limit_s": 1,
    }
    found = tuned(request)
    assert found["outcome"] == "refused" and len(found["reason"]) > 10


@pytest.mark.slow
def test_a_model_is_tuned_in_its_own_process_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = next(iter(contrib_models(tmp_path / "models")))
    monkeypatch.setattr(breadth, "_entries", lambda kinds, zoo: [entry])
    output = tmp_path / "rows.json"
    arguments = ["breadth", "--targets", "onnxruntime", "--time-limit", "2", "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    breadth.main()
    (row,) = json.loads(output.read_text(encoding="utf-8"))["rows"].values()
    # On one thread so small a model may be as fast: either is the one target, whole.
    wholes = ([["onnxruntime", 1]], [["onnxruntime -threads=1", 1]])
    assert row["outcome"] == "tuned" and row["partitions"] in wholes
    assert row["onnxruntime"].endswith(" ms")
    monkeypatch.setattr(breadth, "_row", lambda *_: pytest.fail("a row that is there is kept"))
    breadth.main()


def test_table_names_what_onnxruntime_runs_and_tuning_refuses() -> None:
    settings = {"hardware": "a machine", "targets": ["onnxruntime"], "time_limit_s": 20.0}
    rows = {
        "p: a": {
            "outcome": "tuned",
            "reason": "",
            "seconds": 9.0,
            "partitions": [["x", 3]],
            "onnxruntime": "1 ms",
        },
        "p: b": {
            "outcome": "refused",
            "reason": "it | draws",
            "seconds": 50.0,
            "onnxruntime": "2 ms",
            "dims": {"n": 1},
        },
        "p: c": {"outcome": "refused", "reason": "bad", "seconds": 1.0, "onnxruntime": "refuses: bad"},
    }
    table = breadth.table_of(rows, settings)
    assert "| p: b | n=1 | refused | 50 | it \\| draws | 2 ms |" in table
    assert (
        "3 models: 1 tuned, 2 refused, 0 failed. Refused though ONNX Runtime runs them: p: b." in table
    )
    assert "Longer than 35 s: p: b (50 s)" in table


def test_crash_of_the_process_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("m", "p", tmp_path / "absent.onnx", {}, {"x": np.zeros(1, np.float32)})
    monkeypatch.setattr("sys.executable", "/bin/false")
    row = breadth._row(entry, ["onnxruntime"], 1.0, 10.0)
    assert row["outcome"] == "failed" and "exit code 1" in row["reason"]

"""Int8 in the file for a range of sizes: one set of scales, at sizes that no tuning saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import collage
from collage.artifact.artifact import read_report
from collage.cli.app import app
from collage.deploy import runner
from collage.deploy.package import PLAIN, write_package
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.errors import NoPlanError
from collage.watch.plans import watched_plan
from tests.collage.shapes import models
from tests.tuning import tuned

_DIMS = {"batch": 1, "length": "2,40"}
_BUDGET = 0.1
_INT8 = "onnxruntime -quant=static_int8"


def _tuned(folder: Path, targets: Sequence[str], **options: Any) -> Path:
    given: dict[str, Any] = {"dims": _DIMS, "time_limit_s": 2.0, "tolerance": _BUDGET, **options}
    return tuned(models.feed_forward(), targets, folder, **given).path


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tuned(tmp_path_factory.mktemp("int8"), [_INT8])


def _check(run: Any, model: Path, count: int = 25) -> None:
    """Run sizes in random order, each a few times; outputs are within the budget of the float model."""
    plain = onnxruntime.InferenceSession(model)
    rng = np.random.default_rng(7)
    for _ in range(count):
        size = 1, int(rng.integers(2, 41)), 64
        feed = {"x": rng.standard_normal(size).astype(np.float32)}
        (wanted,) = plain.run(None, feed)
        (mine,) = run(["y"], feed)
        assert mine.shape == wanted.shape
        error = float(np.abs(mine - wanted).max() / np.abs(wanted).max())
        # Samples of tuning are other ones.
        assert error <= 2 * _BUDGET, f"{size}: {error}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "onnxruntime -quant=dynamic_int8",
        "openvino -quant=block_int8",
        "openvino -quant=static_int8",
        "openvino -quant=weights_int8",
    ],
)
def test_each_kind_runs_sizes_that_were_never_tuned(target: str, tmp_path: Path) -> None:
    path = _tuned(tmp_path, [target])
    stored = read_plan(path)
    assert [str(one.target) for one in stored.plan.partitions] == [target]
    assert stored.notes[0].prepared and "int8" in stored.notes[0].numbers
    with collage.load(path) as session:
        _check(session.run, tmp_path / "m.onnx")


@pytest.mark.slow
def test_any_runtime_runs_the_int8_file_at_any_size(artifact: Path) -> None:
    operators = {node.op_type for node in onnx.load(artifact).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    plain = onnxruntime.InferenceSession(artifact)
    _check(plain.run, artifact.with_name("m.onnx"))
    with collage.load(artifact) as session:
        assert session.get_inputs()[0].shape == (1, "length", 64)
        _check(session.run, artifact.with_name("m.onnx"))


@pytest.mark.slow
def test_convolutions_are_int8_for_every_size_of_images(tmp_path: Path) -> None:
    dims = {"batch": 1, "height": "8,16", "width": "8,32"}
    target = "openvino -quant=static_int8"
    path = tuned(
        models.image(), [target], tmp_path, dims=dims, time_limit_s=2.0, tolerance=_BUDGET
    ).path
    assert read_plan(path).notes[0].prepared
    plain = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    rng = np.random.default_rng(1)
    with collage.load(path) as session:
        for height, width in ((8, 32), (13, 9), (16, 31), (9, 9), (13, 9), (8, 32)):
            feed = {"x": rng.standard_normal((1, 3, height, width)).astype(np.float32)}
            (mine,), (wanted,) = session.run(None, feed), plain.run(None, feed)
            assert np.abs(mine - wanted).max() <= 2 * _BUDGET * np.abs(wanted).max()


@pytest.mark.slow
def test_exact_plans_stay_where_int8_errs_too_much(tmp_path: Path) -> None:
    path = _tuned(tmp_path, ["onnxruntime", _INT8], tolerance=1e-3)
    report = read_report(path)
    assert not any(part["prepared"] for part in report["partitions"])
    singles = {one["target"]: one for one in report["shapes"]["rows"][0]["singles"]}
    assert "exceeds 0.001" in singles[_INT8]["failure"] and not singles["onnxruntime"]["failure"]
    with collage.load(path) as session:
        _check(session.run, tmp_path / "m.onnx")
    with pytest.raises(NoPlanError, match="error"):
        _tuned(tmp_path, [_INT8], tolerance=1e-3)


@pytest.mark.slow
def test_a_check_decides_over_int8_at_all_sizes(tmp_path: Path) -> None:
    """A check that no int8 passes leaves fp32, and one that it passes does not."""
    onnx.save(models.feed_forward(), tmp_path / "plain.onnx")
    plain = onnxruntime.InferenceSession(tmp_path / "plain.onnx")

    def worst_error(session: Any) -> float:
        errors = []
        for length in (3, 17, 40):
            rng = np.random.default_rng(length)
            feed = {"x": rng.standard_normal((1, length, 64)).astype(np.float32)}
            (mine,), (wanted,) = session.run(None, feed), plain.run(None, feed)
            errors.append(float(np.abs(mine - wanted).max() / np.abs(wanted).max()))
        return max(errors)

    path = _tuned(tmp_path, ["onnxruntime", _INT8], evaluate=worst_error, at_most=1e-4)
    assert not any("quant" in part["target"] for part in read_report(path)["partitions"])
    path = _tuned(tmp_path, [_INT8], evaluate=worst_error, at_most=2 * _BUDGET)
    assert read_plan(path).notes[0].prepared


@pytest.mark.slow
@pytest.mark.parametrize("variant", [None, PLAIN])
def test_a_package_of_int8_runs_every_size(artifact: Path, tmp_path: Path, variant: str | None) -> None:
    folder = write_package(artifact, tmp_path / "package", threads=1).folder
    with runner.Session(folder, variant=variant) as session:
        _check(session.run, artifact.with_name("m.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("command", [["explain"], ["run"], ["bench", "--processes", "1"]])
def test_the_command_line_takes_int8_of_any_size(artifact: Path, command: list[str]) -> None:
    done = CliRunner().invoke(app, [command[0], str(artifact), *command[1:]])
    assert done.exit_code == 0, done.output
    if command[0] == "bench":
        said = " ".join(done.output.split())
        assert "single targets of the given model are not timed" in said


@pytest.mark.slow
def test_int8_of_two_runtimes_and_float_share_one_file(tmp_path: Path) -> None:
    first, second = _INT8, "openvino -quant=weights_int8"
    pins = [f"{name}_0={first}" for name in ("up", "active", "down")]
    pins += [f"{name}_1={second}" for name in ("up", "active", "down")]
    pins += [f"{name}=mnn" for name in ("sum_0", "sum_1", "mean")]
    path = _tuned(tmp_path, ["mnn", first, second], strategy="manual", pins=pins)
    stored = read_plan(path)
    targets = [str(one.target) for one in stored.plan.partitions]
    assert set(targets) == {"mnn", first, second}
    assert [bool(note.prepared) for note in stored.notes] == [text != "mnn" for text in targets]
    with collage.load(path) as session:
        _check(session.run, tmp_path / "m.onnx")
    (tmp_path / "watch").mkdir()
    watched = watched_plan(path, tmp_path / "watch", 1)
    assert sum(step.model.prepared for step in watched.whole.steps) == 2


@pytest.mark.slow
def test_nothing_to_quantize_is_told_for_a_range_too(tmp_path: Path) -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        g (float[N, 4] x) => (float[N, 4] y) { h = Relu(x) y = Sigmoid(h) }"""
    )
    options: dict[str, Any] = {"dims": {"N": "1..9"}, "time_limit_s": 2.0, "tolerance": _BUDGET}
    report = tuned(source, ["onnxruntime", _INT8], tmp_path, **options).report
    assert not any(part["prepared"] for part in report["partitions"])
    failures = {
        one["target"]: one["failure"] for row in report["shapes"]["rows"] for one in row["singles"]
    }
    assert "cannot rewrite it" in failures[_INT8]

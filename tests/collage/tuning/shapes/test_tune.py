"""A model tuned for a range of shapes, on real runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from typer.testing import CliRunner

import collage
from collage.artifact.artifact import read_report
from collage.artifact.export import export, read_plan_file
from collage.cli.app import app
from collage.events import Event
from collage.partitioner.emit.metadata import metadata_of
from collage.partitioner.errors import BadInputError, NoPlanError
from collage.shapes.classes import SHAPES_KEY, ServedShapes
from tests.collage.shapes import models as shape_models
from tests.tuning import tuned

_TARGETS = ("onnxruntime", "openvino")
_LIMIT: dict[str, Any] = {"time_limit_s": 2.0}
# Without a scale of 0 no two runs agree.
_NOISY = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[N] x, float[1] scale) => (float[N] y) { n = RandomNormalLike(x) m = Mul(n, scale) y = Add(x, m) }"""
_PLAN = {
    "format": 1,
    "model_sha256": "0" * 64,
    "partitions": [{"target": "onnxruntime", "nodes": ["first"]}],
}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    dims = {"batch": "1,3", "length": "2:0.25,40:0.75"}
    return tuned(shape_models.chain(), _TARGETS, folder, dims=dims, time_limit_s=20.0).path


@pytest.mark.slow
def test_sizes_that_were_never_tuned_run_right(artifact: Path) -> None:
    plain = onnxruntime.InferenceSession(artifact.with_name("m.onnx"))
    rng = np.random.default_rng(0)
    with collage.load(artifact) as session:
        for _ in range(20):
            batch, length = int(rng.integers(1, 4)), int(rng.integers(2, 41))
            x = rng.standard_normal((batch, length, 8)).astype(np.float32)
            feed = {"x": x, "bias": rng.standard_normal(length).astype(np.float32)}
            for mine, other in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_report_has_a_row_for_each_shape(artifact: Path) -> None:
    report = read_report(artifact)
    shapes = report["shapes"]
    assert {tuple(row["sizes"].values()) for row in shapes["rows"]} == {
        (1, 2),
        (1, 40),
        (3, 2),
        (3, 40),
    }
    for row in shapes["rows"]:
        assert row["latency_us"] > 0
        assert [single["target"] for single in row["singles"]] == list(_TARGETS)
        assert row["class"] in range(len(shapes["classes"]))
    assert shapes["weighted"]["latency_us"] > 0
    assert shapes["rss_bytes"].keys() >= {"ours"}
    assert report["latency_interval_us"][0] <= report["latency_us"] <= report["latency_interval_us"][1]
    served = ServedShapes.from_text(metadata_of(artifact)[SHAPES_KEY])
    assert len(served.classes) == len(shapes["classes"])
    assert served.classes[-1].up_to is None


@pytest.mark.slow
@pytest.mark.parametrize("command", [["explain"], ["run"], ["bench", "--processes", "1"]])
def test_the_command_line_takes_such_an_artifact(artifact: Path, command: list[str]) -> None:
    done = CliRunner().invoke(app, [command[0], str(artifact), *command[1:]])
    assert done.exit_code == 0, done.output
    if command != ["run"]:
        assert "batch × length" in done.output and " × 40 " in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (["length=7"], ""),
        (["length=2", "batch=3"], ""),
        (["length=40"], ""),
        (["length=41"], "axis 1: length is 41, which is outside of 2..40"),
        (["length=0"], "axis 1: length is 0, which is outside of"),
        (["width=7"], "width is no free dimension; batch, length is"),
        (["length=2..7"], "--dim length=2..7: a run has one size of each dimension"),
    ],
)
def test_any_size_of_the_range_is_run(artifact: Path, dims: list[str], message: str) -> None:
    given = [word for text in dims for word in ("--dim", text)]
    done = CliRunner().invoke(app, ["run", str(artifact), *given])
    assert (done.exit_code == 0) == (not message), done.output
    if message:
        assert message in str(done.exception)
    else:
        assert f", {dims[0].partition('=')[2]}, " in done.output


@pytest.mark.slow
def test_bench_times_each_shape_again(artifact: Path) -> None:
    done = CliRunner().invoke(app, ["bench", str(artifact), "--processes", "1", "--json"])
    rows = json.loads(done.output)["shapes"]
    assert len(rows) == 4
    assert all(row["latency_us"] > 0 and row["infeasible"] is None for row in rows)


@pytest.mark.slow
def test_a_shape_that_depends_on_data_is_served(tmp_path: Path) -> None:
    path = tuned(
        shape_models.data_dependent(), _TARGETS, tmp_path, dims={"rows": "2..9"}, **_LIMIT
    ).path
    plain = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    rng = np.random.default_rng(1)
    with collage.load(path) as session:
        for rows in (2, 9, 5, 9, 9, 2):
            x = rng.standard_normal((rows, 4)).astype(np.float32)
            feed = {"x": x, "first": rng.integers(0, 2, rows).astype(bool)}
            for mine, other in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_one_size_of_each_dimension_makes_a_fixed_artifact(tmp_path: Path) -> None:
    dims = {"batch": "1", "length": 4}
    path = tuned(shape_models.chain(), ["onnxruntime"], tmp_path, dims=dims, **_LIMIT).path
    assert SHAPES_KEY not in metadata_of(path)
    with collage.load(path) as session:
        assert [node.shape for node in session.get_inputs()] == [(1, 4, 8), (4,)]


def test_a_size_that_the_model_cannot_have_is_named(tmp_path: Path) -> None:
    model = shape_models.chain()
    model.graph.node[5].input[1] = "fixed_shape"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([6, 8]), "fixed_shape"))
    message = r"dimension batch \(axis 0 of input x\): the model cannot take size 2: node 'flatten' \(Reshape\) fails"
    with pytest.raises(BadInputError, match=message):
        tuned(model, ["onnxruntime"], tmp_path, dims={"batch": "1,2", "length": "6,7"}, **_LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pareto": True}, "a front is found at one shape"),
        (
            {"objective": "throughput"},
            "settings for the objective throughput .* give it, as --dim batch=1 --dim height=.* --dim width=",
        ),
        ({"plan": _PLAN}, "the plan was made for another model, or for other sizes"),
        (
            {"evaluate": "top1", "max_drop": 0.1},
            "evaluate=top1 scores real samples: give them with --inputs",
        ),
        ({"labels": "y.npy"}, "labels are the truth of a metric"),
        ({"targets": ["null -domain=sim:0"]}, "computes in memory of a device"),
    ],
)
def test_what_is_made_for_one_shape_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    targets = options.pop("targets", ["onnxruntime"])
    with pytest.raises(BadInputError, match=message):
        tuned(shape_models.image(), targets, tmp_path, dims={"batch": "1,2"}, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"depth": "x"}, "depth has not several sizes; batch, width has"),
        ({"width": "y"}, "y is no input with the dimension width; these are: x"),
    ],
)
def test_a_mask_that_cannot_be_one_is_refused(
    tmp_path: Path, masks: dict[str, str], message: str
) -> None:
    dims = {"batch": "1,2", "height": 8, "width": "8,16"}
    with pytest.raises(BadInputError, match=message):
        tuned(shape_models.image(), ["onnxruntime"], tmp_path, dims=dims, pad_masks=masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_limit_mib": 100.0}, "a limit of memory is for a range of sizes"),
        ({"pad_masks": {"width": "x"}}, "a mask of padding is for a range of sizes"),
    ],
)
def test_what_is_for_a_range_is_refused_at_one_size(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    dims = {"batch": 1, "height": 8, "width": 8}
    with pytest.raises(BadInputError, match=message):
        tuned(shape_models.image(), ["onnxruntime"], tmp_path, dims=dims, **options)


@pytest.mark.slow
def test_a_limit_of_memory_that_no_plan_keeps_names_the_leanest(tmp_path: Path) -> None:
    dims = {"batch": 1, "height": 8, "width": "8,16"}
    # One thread or two: they differ by less than measurements of memory do.
    leanest = r"within 5 MiB; the leanest is ONNX Runtime( with -threads=1)? with \d+ MiB"
    with pytest.raises(NoPlanError, match=leanest):
        tuned(
            shape_models.image(), ["onnxruntime"], tmp_path, dims=dims, memory_limit_mib=5.0, **_LIMIT
        )


@pytest.mark.slow
def test_targets_that_take_one_shape_only_are_refused_in_words(tmp_path: Path) -> None:
    dims = {"batch": 1, "height": 8, "width": "8,16"}
    with pytest.raises(NoPlanError, match="no target runs the model with free dimensions at width=8"):
        tuned(shape_models.image(), ["ncnn"], tmp_path, dims=dims, **_LIMIT)


@pytest.mark.slow
def test_both_ends_stay_where_there_is_no_time_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.tuning.shapes.samples._READING_S", -100.0)
    dims = {"batch": 1, "length": "2,5,9,17,40"}
    path = tuned(shape_models.chain(), ["onnxruntime"], tmp_path, dims=dims, **_LIMIT).path
    report = read_report(path)
    rows = {row["sizes"]["length"]: row["weight"] for row in report["shapes"]["rows"]}
    assert rows == pytest.approx({2: 0.6, 40: 0.4})
    assert any("2 of 5 sizes were compared (length=2; length=40)" in t for t in report["warnings"])
    plain = onnxruntime.InferenceSession(path.with_name("m.onnx"))
    with collage.load(path) as session:
        for length in (2, 9, 33):
            feed = {"x": np.ones((1, length, 8), np.float32), "bias": np.ones(length, np.float32)}
            for mine, other in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_an_exported_plan_is_applied_to_the_same_range(tmp_path: Path) -> None:
    dims = {"batch": 1, "length": "2..40"}
    first = tuned(shape_models.chain(), ["openvino"], tmp_path, dims=dims, **_LIMIT)
    export(first.path, plan=tmp_path / "plan.json")
    again = collage.tune(
        tmp_path / "m.onnx",
        ["onnxruntime", "openvino"],
        output=tmp_path / "again.onnx",
        database=f"sqlite:///{tmp_path / 'again.db'}",
        dims=dims,
        plan=read_plan_file(tmp_path / "plan.json"),
        **_LIMIT,
    )
    assert again.plan["partitions"][0]["nodes"] == first.plan["partitions"][0]["nodes"]
    (one,) = again.report["shapes"]["classes"]
    assert one["targets"] == ["openvino"]
    with collage.load(again.path) as session:
        feed = {"x": np.ones((1, 7, 8), np.float32), "bias": np.ones(7, np.float32)}
        assert all(np.isfinite(made).all() for made in session.run(None, feed))


@pytest.mark.slow
def test_bench_runs_on_given_inputs_where_seeded_ones_do_not_do(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(_NOISY)
    samples = {f"{n}/x": np.arange(n, dtype=np.float32) for n in (4, 9)}
    samples |= {f"{n}/scale": np.zeros(1, np.float32) for n in (4, 9)}
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **samples)
    inputs = tmp_path / "inputs.npz"
    path = tuned(model, ["onnxruntime"], tmp_path, dims={"N": "4,9"}, inputs=inputs, **_LIMIT).path
    done = CliRunner().invoke(app, ["bench", str(path), "--processes", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert all(row["latency_us"] > 0 for row in json.loads(done.output)["shapes"])


@pytest.mark.slow
def test_the_run_is_over_once(tmp_path: Path) -> None:
    told: list[Event] = []
    dims = {"batch": 1, "height": 8, "width": "8,16"}
    tuned(shape_models.image(), ["onnxruntime"], tmp_path, dims=dims, on_event=told.append, **_LIMIT)
    assert [event.stage for event in told].count("done") == 1
    assert told[-1].stage == "done"


@pytest.mark.slow
def test_each_size_is_read_once_and_one_artifact_written(tmp_path: Path) -> None:
    told: list[Event] = []
    dims = {"batch": 1, "height": 8, "width": "8,16"}
    made = tuned(
        shape_models.image(),
        ["onnxruntime"],
        tmp_path,
        dims=dims,
        on_event=told.append,
        time_limit_s=20.0,
    )
    computed = [event.message for event in told if event.message.startswith("computing ")]
    assert len(computed) == 2
    assert [event.message for event in told if event.stage == "emit"] == ["writing the artifact"]
    took = made.report["footprint"]
    assert took["peak_rss_bytes"] > 1 << 20 and took["load_s"] > 0 and took["size_bytes"] > 0


@pytest.mark.slow
def test_a_limit_is_kept_for_many_sizes_and_the_artifact_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each plan takes seconds to compile, what does not fit is left out."""
    monkeypatch.setattr(
        "collage.timing.plan_timer.PlanTimer.plan_s",
        property(lambda timer: 4.0, _ignore),
        raising=False,
    )
    dims = {"batch": 1, "length": "2,5,9,17,40"}
    made = tuned(shape_models.chain(), _TARGETS, tmp_path, dims=dims, time_limit_s=4.0)
    assert made.report["seconds"]["total"] < 1.25 * 4.0 + 10
    (told,) = [
        text for text in made.report["warnings"] if text.startswith("for all sizes the time limit")
    ]
    assert "the memory of processes" in told
    assert {row["sizes"]["length"] for row in made.report["shapes"]["rows"]} >= {2, 40}
    plain = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    with collage.load(made.path) as session:
        for length in (2, 9, 33):
            feed = {"x": np.ones((1, length, 8), np.float32), "bias": np.ones(length, np.float32)}
            for mine, other in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


def _ignore(timer: object, seconds: float) -> None:
    """For a property that is stated."""

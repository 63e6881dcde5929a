"""Artifacts in other forms: written by the command, read by those they are for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.artifact.export import export, parse_devices, read_plan_file
from collage.options import TuneOptions, chosen_targets
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.annotate import annotate, read_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.report.bench import bench
from collage.report.partition_svg import PartitionTimes, draw

ORT, OPENVINO = Target("onnxruntime"), Target.parse("openvino -precision=f32")
TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[1, 8] x) => (float[1, 8] d) {
    a = Relu(x)  b = Exp(a)  c = Tanh(b)  d = Neg(c)
}"""


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    model = Model.open(normalize(tmp_path / "m.onnx", tmp_path / "n", {}).path)
    plan = Plan((Candidate(0b0011, ORT), Candidate(0b1100, OPENVINO)))
    return annotate(model, plan, {}, tmp_path / "a.onnx", versions={"openvino": "1"})


def test_a_plan_alone_names_targets_and_is_the_artifacts_own(artifact: Path, tmp_path: Path) -> None:
    written = export(artifact, plan=tmp_path / "plan.json")
    assert written == {"plan": str(tmp_path / "plan.json")}
    alone = read_plan_file(tmp_path / "plan.json")
    given = TuneOptions.from_json({"plan": alone}).plan
    assert chosen_targets([], given) == ["onnxruntime", "openvino -precision=f32"]
    assert chosen_targets(["mnn"], given) == ["mnn"] and chosen_targets([], None) == []
    assert read_plan_file(artifact) == alone and alone["versions"] == {"openvino": "1"}


def test_outlined_and_annotated_models_open_in_onnxruntime(artifact: Path, tmp_path: Path) -> None:
    written = export(
        artifact,
        outlined=tmp_path / "o.onnx",
        layers=tmp_path / "l.onnx",
        devices=parse_devices(["openvino -precision=f32=npu"]),
    )
    assert written["settings"] == {
        "session.layer_assignment_settings": "cpu(=partition_0); npu(=partition_1)"
    }
    onnx.checker.check_model(str(tmp_path / "o.onnx"), full_check=True)
    outlined = onnx.load(tmp_path / "o.onnx")
    assert len(outlined.functions) == len(outlined.graph.node) == 2
    assert not [p.key for p in outlined.metadata_props if p.key.startswith("collage.")]
    feed = {"x": np.linspace(-1, 1, 8, dtype=np.float32)[None]}
    for path in ("o.onnx", "l.onnx"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # there is no NPU here, and the error says so
        for key, value in (written["settings"] if path == "l.onnx" else {}).items():
            options.add_session_config_entry(key, value)
        session = onnxruntime.InferenceSession(
            str(tmp_path / path), options, providers=["CPUExecutionProvider"]
        )
        expected = -np.tanh(np.exp(np.maximum(feed["x"], 0)))
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-5)


def test_unsupported_export_is_refused_with_the_reason(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nothing to export"):
        export(artifact)
    with pytest.raises(BadInputError, match="no execution provider"):
        export(artifact, layers=tmp_path / "l.onnx")
    with pytest.raises(BadInputError, match="target=device"):
        parse_devices(["openvino"])
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(BadInputError, match="holds no plan"):
        read_plan_file(tmp_path / "list.json")
    with pytest.raises(BadInputError, match="cannot be read"):
        read_plan_file(tmp_path / "none.json")


@pytest.mark.slow
def test_bench_shows_that_a_plan_applied_again_is_the_same(artifact: Path, tmp_path: Path) -> None:
    import collage

    database = f"sqlite:///{tmp_path / 'c.db'}"
    given = read_plan_file(artifact)
    made = [
        collage.tune(
            tmp_path / "m.onnx",
            output=tmp_path / name,
            database=database,
            plan=given,
        )
        for name in ("one.onnx", "two.onnx")
    ]
    assert made[0].report["search"] is None
    assert made[0].report["candidates"]["measured"] <= 2  # the single targets to compare with
    assert [p["nodes"] for p in read_plan_file(made[1].path)["partitions"]] == [
        p["nodes"] for p in given["partitions"]
    ]
    found = bench(made[0].path, against=made[1].path, processes=1)["against"]
    assert found["same_plan"] and 0.1 < found["ratio"] < 10
    assert json.loads(json.dumps(found)) == found


def test_a_picture_of_many_partitions_is_no_ribbon(artifact: Path) -> None:
    lines = "  ".join(f"v{i} = Relu(v{i - 1})" if i else "v0 = Relu(x)" for i in range(300))
    text = (
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => (float[4] v299) {{ {lines} }}"""
    )
    source = artifact.parent / "long.onnx"
    onnx.save(onnx.parser.parse_model(text), source)
    index = Model.open(normalize(source, artifact.parent / "long", {}).path).index
    parts = [Candidate(0b111 << 3 * i, (ORT, OPENVINO)[i % 2]) for i in range(100)]
    svg = draw(index, parts, [PartitionTimes(1000.0 * i, 900.0 * i) for i in range(100)])
    width, height = (int(svg.split(f'{name}="')[1].split('"')[0]) for name in ("width", "height"))
    assert 0.6 < width / height < 2.5
    assert svg.count("<g>") == 100 and "100 partitions of 300 nodes" in svg
    assert "openvino -precision=f32: 50 partitions, 150 nodes" in svg


def test_artifacts_of_different_models_are_not_compared(artifact: Path, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT.replace("Tanh", "Sigmoid")), tmp_path / "s.onnx")
    model = Model.open(normalize(tmp_path / "s.onnx", tmp_path / "s", {}).path)
    report = {
        "collage.report": json.dumps({"targets": ["onnxruntime"], "metric": "max", "tolerance": 1e-3})
    }
    plan = read_plan(artifact).plan
    one = annotate(model, plan, report, tmp_path / "s2.onnx")
    with pytest.raises(BadInputError, match="another model"):
        bench(one, against=artifact)

"""Exports: outlined functions, ONNX Runtime's layer annotations, the plan as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.emit import exports, plan_json
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from tests.partitioner.emit.test_annotate import OPENVINO, ORT, plan_of
from tests.partitioner.running import assert_equal, feed_for, run

Open = Callable[[str], Model]


def _blocks(folder: Path) -> Model:
    """Three blocks of equal structure with different weights."""
    lines = " ".join(
        f"m{i} = MatMul({before}, w{i})  y{i} = Relu(m{i})"
        for i, before in enumerate(["x", "y0", "y1"])
    )
    inputs = ", ".join(["float[1, 8] x", *(f"float[8, 8] w{i}" for i in range(3))])
    text = (
        f"""<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[1, 8] y2) {{ {lines} }}"""
    )
    proto = onnx.parser.parse_model(text)
    for i in range(3):
        array = np.random.default_rng(i).standard_normal((8, 8)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, f"w{i}"))
    onnx.save(proto, folder / "m.onnx")
    return Model.open(normalize(folder / "m.onnx", folder / "n", {}).path)


class TestOutline:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["light_squeezenet", "silero_if", "silero_16k", "magika"])
    def test_exported_model_computes_the_same(
        self, name: str, normalized: Open, tmp_path: Path
    ) -> None:
        model = normalized(name)
        plan = plan_of(model, *range(1, len(model.nodes), max(1, len(model.nodes) // 7)))
        path = exports.outline(model, plan, tmp_path / "o.onnx")
        onnx.checker.check_model(str(path))
        assert len(onnx.load(path).graph.node) == len(plan.partitions)
        feed = feed_for((model.index.values[n] for n in model.index.inputs), name)
        assert_equal(run(path, feed), run(model.path, feed))

    def test_equal_partitions_share_a_body(self, tmp_path: Path) -> None:
        model = _blocks(tmp_path)
        path = exports.outline(model, plan_of(model, 2, 4), tmp_path / "o.onnx")
        proto = onnx.load(path)
        assert [node.op_type for node in proto.graph.node] == ["partition_0"] * 3
        (function,) = proto.functions
        assert len(function.input) == 2 and function.opset_import == proto.opset_import[:1]
        feed = feed_for([model.index.values["x"]])
        assert_equal(run(path, feed), run(model.path, feed))

    def test_calls_say_partition_and_target(self, tmp_path: Path) -> None:
        model = _blocks(tmp_path)
        proto = onnx.load(exports.outline(model, plan_of(model, 2), tmp_path / "o.onnx"))
        marks = [{p.key: p.value for p in node.metadata_props} for node in proto.graph.node]
        assert marks[1] == {"collage.partition": "1", "collage.target": str(OPENVINO)}


class TestLayerAnnotations:
    CUDA = Target.parse("onnxruntime -ep=cuda")

    def _session(
        self, annotated: exports.LayerAnnotations, **more: str
    ) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        for key, value in {**annotated.settings, **more}.items():
            options.add_session_config_entry(key, value)
        return onnxruntime.InferenceSession(
            str(annotated.path), options, providers=["CPUExecutionProvider"]
        )

    def test_exports_state_the_device_of_each_partition(self, tmp_path: Path) -> None:
        model = _blocks(tmp_path)
        plan = Plan((Candidate(0b11, ORT), Candidate(0b1100, self.CUDA), Candidate(0b110000, ORT)))
        annotated = exports.layer_annotations(model, plan, tmp_path / "a.onnx")
        assert annotated.settings == {
            "session.layer_assignment_settings": "cpu(=partition_0, =partition_2); cuda(=partition_1)"
        }
        marks = [node.metadata_props[0] for node in onnx.load(annotated.path).graph.node]
        assert [(m.key, m.value) for m in marks[1:3]] == [
            ("layer_ann", "partition_0"),
            ("layer_ann", "partition_1"),
        ]

    def test_a_real_session_takes_them(self, tmp_path: Path) -> None:
        model = _blocks(tmp_path)
        annotated = exports.layer_annotations(
            model, Plan((Candidate(0b11, ORT), Candidate(0b111100, self.CUDA))), tmp_path / "a.onnx"
        )
        session = self._session(annotated, **{"session.record_ep_graph_assignment_info": "1"})
        placed = {part.ep_name for part in session.get_provider_graph_assignment_info()}
        assert placed == {"CPUExecutionProvider"}
        feed = feed_for([model.index.values["x"]])
        np.testing.assert_allclose(session.run(None, feed)[0], run(model.path, feed)["y2"], rtol=1e-5)

    def test_session_maps_each_partition_to_the_provider_of_its_device(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """On a machine with a CPU alone, only the log shows the assignment."""
        model = _blocks(tmp_path)
        plan = Plan((Candidate(0b11, ORT), Candidate(0b111100, self.CUDA)))
        annotated = exports.layer_annotations(model, plan, tmp_path / "a.onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 0
        for key, value in annotated.settings.items():
            options.add_session_config_entry(key, value)
        onnxruntime.InferenceSession(str(annotated.path), options, providers=["CPUExecutionProvider"])
        said = capfd.readouterr().err
        assert "Layering Rule 0 (cpu -> partition_0) mapped to EP: CPUExecutionProvider" in said
        assert "(device='cuda', annotation='partition_1') could not be mapped" in said
        assert "Matched 1 out of 2 rules" in said

    def test_a_real_session_reads_them(self, tmp_path: Path) -> None:
        """Damaged settings are refused, so the very entry that is written is what it parses."""
        model = _blocks(tmp_path)
        annotated = exports.layer_annotations(model, plan_of(model), tmp_path / "a.onnx", {ORT: "cpu"})
        (key,) = annotated.settings
        with pytest.raises(Exception, match=r"(?i)layer"):
            self._session(annotated, **{key: annotated.settings[key].replace(")", "")})

    def test_other_backends_need_a_device(self, tmp_path: Path) -> None:
        model = _blocks(tmp_path)
        plan = plan_of(model, 3)
        with pytest.raises(BadInputError, match="'openvino -precision=bf16' is no execution provider"):
            exports.layer_annotations(model, plan, tmp_path / "a.onnx")
        annotated = exports.layer_annotations(model, plan, tmp_path / "a.onnx", {OPENVINO: "npu"})
        assert "npu(=partition_1)" in annotated.settings["session.layer_assignment_settings"]


def test_the_plan_alone_goes_through_json(normalized: Open) -> None:
    model = normalized("silero_16k")
    plan = plan_of(model, 7, 9)
    text = plan_json.encode_plan(model, plan, [1.5, None, 2.0], {"openvino": "1"})
    again = plan_json.decode_plan(Model.open(model.path), text)
    assert [(bits(p.nodes), p.target) for p in again.plan.partitions] == [
        (bits(p.nodes), p.target) for p in plan.partitions
    ]
    assert again.latency_us == (1.5, None, 2.0) and again.versions == {"openvino": "1"}
    with pytest.raises(BadInputError, match="another model"):
        plan_json.decode_plan(normalized("magika"), text)

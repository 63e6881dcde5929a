"""Artifacts: standard files that contain their plan; a wrong plan is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import onnx
import pytest

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.annotate import PLAN_KEY, annotate, read_plan
from collage.partitioner.errors import BadInputError, CollageError, ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from tests.partitioner.running import assert_equal, feed_for, run

ORT, OPENVINO = Target.parse("onnxruntime"), Target.parse("openvino -precision=bf16")
Open = Callable[[str], Model]


def plan_of(model: Model, *cuts: int) -> Plan:
    """Partitions between positions in the topological order, targets by turns."""
    borders = [0, *cuts, len(model.nodes)]
    return Plan(
        tuple(
            Candidate(((1 << (end - start)) - 1) << start, (ORT, OPENVINO)[i % 2])
            for i, (start, end) in enumerate(pairwise(borders))
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_squeezenet", "silero_if", "silero_16k", "magika"])
def test_an_artifact_is_the_model_with_its_plan(name: str, normalized: Open, tmp_path: Path) -> None:
    model = normalized(name)
    plan = plan_of(model, *range(1, len(model.nodes), max(1, len(model.nodes) // 5)))
    times = [float(i) if i else None for i in range(len(plan.partitions))]
    path = annotate(
        model,
        plan,
        {"collage.report": "é"},
        tmp_path / "a.onnx",
        latency_us=times,
        versions={"openvino": "1"},
    )
    onnx.checker.check_model(str(path))
    found = read_plan(path)
    assert [(p.nodes, p.target) for p in found.plan.partitions] == [
        (p.nodes, p.target) for p in plan.partitions
    ]
    assert found.latency_us == tuple(times) and found.versions == {"openvino": "1"}
    assert found.metadata["collage.report"] == "é"
    assert found.model.sha256 == model.sha256
    feed = feed_for((model.index.values[n] for n in model.index.inputs), name)
    assert_equal(run(path, feed), run(model.path, feed))
    if name != "silero_if":  # its untaken branch contradicts the shapes, which the optimizer notices
        assert_equal(run(path, feed, optimized=True), run(model.path, feed))


def test_nodes_carry_their_partition_and_target(normalized: Open, tmp_path: Path) -> None:
    model = normalized("silero_16k")
    path = annotate(model, plan_of(model, 10), {}, tmp_path / "a.onnx")
    marks = [{p.key: p.value for p in node.metadata_props} for node in onnx.load(path).graph.node]
    assert marks[9] == {"collage.partition": "0", "collage.target": "onnxruntime"}
    assert marks[10] == {"collage.partition": "1", "collage.target": "openvino -precision=bf16"}


def test_annotate_is_deterministic_and_replaces_old_notes(normalized: Open, tmp_path: Path) -> None:
    """Equal input gives equal bytes, and annotating anew leaves nothing old."""
    model = normalized("silero_16k")
    first = annotate(
        model, plan_of(model, 5), {"collage.b": "1", "collage.a": "2"}, tmp_path / "a.onnx"
    )
    second = annotate(
        model, plan_of(model, 5), {"collage.a": "2", "collage.b": "1"}, tmp_path / "b.onnx"
    )
    assert first.read_bytes() == second.read_bytes()
    other = annotate(Model.open(first), plan_of(model, 20), {}, tmp_path / "c.onnx")
    fresh = annotate(model, plan_of(model, 20), {}, tmp_path / "d.onnx")
    assert other.read_bytes() == fresh.read_bytes()


def test_foreign_metadata_keys_are_refused(normalized: Open, tmp_path: Path) -> None:
    model = normalized("silero_16k")
    with pytest.raises(BadInputError, match=r"'report' does not start with 'collage.'"):
        annotate(model, plan_of(model), {"report": "x"}, tmp_path / "a.onnx")


def test_plan_that_does_not_cover_is_refused_before_writing(normalized: Open, tmp_path: Path) -> None:
    model = normalized("silero_16k")
    with pytest.raises(CollageError):
        annotate(model, Plan(plan_of(model, 5).partitions[:1]), {}, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


class TestReading:
    @pytest.fixture
    def artifact(self, normalized: Open, tmp_path: Path) -> Path:
        model = normalized("silero_16k")
        return annotate(model, plan_of(model, 5, 20), {}, tmp_path / "a.onnx")

    def _rewrite(self, artifact: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
        proto = onnx.load(artifact)
        (entry,) = [p for p in proto.metadata_props if p.key == PLAN_KEY]
        content = json.loads(entry.value)
        replaced = change(content)
        entry.value = replaced if isinstance(replaced, str) else json.dumps(content)
        onnx.save(proto, artifact)

    def test_a_model_without_a_plan(self, normalized: Open) -> None:
        with pytest.raises(BadInputError, match=r"is a plain ONNX model"):
            read_plan(normalized("silero_16k").path)

    def test_a_model_that_no_run_has_normalized(self, tmp_path: Path) -> None:
        """Its nodes have no names and stand in no order."""
        text = '<ir_version: 8, opset_import: ["" : 17]> m (float[4] x) => (float[4] y) { y = Neg(a)  a = Relu(x) }'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
        with pytest.raises(BadInputError, match=r"a.onnx is a plain ONNX model"):
            read_plan(tmp_path / "a.onnx")

    def test_no_model_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "a.onnx").write_bytes(b"nonsense")
        with pytest.raises(ModelError, match="not an ONNX model"):
            read_plan(tmp_path / "a.onnx")
        with pytest.raises(ModelError, match="no model file"):
            read_plan(tmp_path / "b.onnx")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: "{", "not JSON"),
            (lambda c: "[" * 100_000, "not JSON"),
            (lambda c: "[]", "not a JSON object"),
            (lambda c: c.update(format=2), "format 2"),
            (lambda c: c.update(model_sha256="0"), "another model"),
            (lambda c: c.pop("partitions"), "no list of partitions"),
            (lambda c: c.update(partitions=[1]), "partition 0 .* not an object"),
            (lambda c: c["partitions"][0].update(nodes=[]), "no target or no nodes"),
            (lambda c: c["partitions"][0].update(target="NO"), "target 'NO'"),
            (lambda c: c["partitions"][1]["nodes"].append("ghost"), "names node 'ghost'"),
            (
                lambda c: c["partitions"][0]["nodes"].append(c["partitions"][0]["nodes"][0]),
                "a node twice",
            ),
            (lambda c: c["partitions"][0]["nodes"].pop(), ".{20}"),
            (lambda c: c["partitions"][1]["nodes"].append(c["partitions"][0]["nodes"][0]), ".{20}"),
            (lambda c: c["partitions"].reverse(), ".{20}"),
            (lambda c: c["partitions"][0].update(latency_us=-1), "latency_us -1"),
            (lambda c: c["partitions"][0].update(latency_us=True), "latency_us True"),
            (lambda c: c.update(versions=3), "versions"),
        ],
    )
    def test_a_damaged_plan(
        self,
        artifact: Path,
        change: Callable[[dict], object],  # type: ignore[type-arg]
        message: str,
    ) -> None:
        read_plan(artifact)
        self._rewrite(artifact, change)
        with pytest.raises(CollageError, match=message):
            read_plan(artifact)

    def test_weights_that_changed_after_tuning(self, artifact: Path) -> None:
        proto = onnx.load(artifact)
        weight = max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        weight.raw_data = bytes(len(weight.raw_data))
        onnx.save(proto, artifact)
        with pytest.raises(BadInputError, match="another model"):
            read_plan(artifact)

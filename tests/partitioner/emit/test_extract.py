"""Extraction: sub-models that, run one after another, compute what the model computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.partitioner.emit.extract import extract, with_outputs
from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.ingest.normalize import normalize
from tests.partitioner.running import assert_equal, feed_for, run

Open = Callable[[str], Model]


def _interval(start: int, end: int) -> int:
    return ((1 << (end - start)) - 1) << start


def _model(folder: Path, text: str) -> Model:
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    onnx.save(onnx.parser.parse_model(head + text), folder / "m.onnx")
    return Model.open(normalize(folder / "m.onnx", folder / "n", {}).path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_squeezenet", "ppocr_cls", "silero", "silero_16k", "magika"])
def test_parts_in_turn_compute_the_whole(name: str, normalized: Open, tmp_path: Path) -> None:
    model = normalized(name)
    feed = feed_for((model.index.values[n] for n in model.index.inputs), name)
    known = dict(feed)
    size = len(model.nodes)
    for start, end in pairwise([0, size // 5, size // 2, size - 1, size]):
        nodes = _interval(start, end)
        part = extract(model, nodes, tmp_path / str(start))
        sub_graph = SubGraph(model.index, nodes)
        proto = onnx.load(part.path)
        onnx.checker.check_model(proto)
        assert tuple(v.name for v in proto.graph.input) == sub_graph.inputs
        assert tuple(v.name for v in proto.graph.output) == sub_graph.outputs
        assert [n.name for n in proto.graph.node] == [n.name for n in model.index.nodes[start:end]]
        assert [spec.name for spec in part.inputs] == list(sub_graph.inputs)
        known.update(run(part.path, {n: known[n] for n in sub_graph.inputs}))
    assert_equal({n: known[n] for n in model.index.outputs}, run(model.path, feed))


@pytest.mark.slow
def test_a_single_node_takes_no_second(normalized: Open, tmp_path: Path) -> None:
    model = normalized("ppocr_cls")
    extract(model, 1, tmp_path)
    start = time.perf_counter()
    for i in range(20):
        extract(model, 1 << i, tmp_path)
    assert (time.perf_counter() - start) / 20 < 1


def test_values_captured_by_bodies_become_inputs_and_weights(tmp_path: Path) -> None:
    model = _model(
        tmp_path,
        """g (bool cond, float[2] x) => (float[2] y) {
            a = Abs(x)  w = Constant<value = float[2] {3, 4}>()
            y = If(cond) <
                then_branch = t () => (float[2] p) { p = Add(a, w) },
                else_branch = e () => (float[2] q) { q = Mul(x, w) }
            >
        }""",
    )
    part = extract(model, 0b10, tmp_path / "part")
    assert [spec.name for spec in part.inputs] == ["cond", "a", "x"]
    x = np.array([-1, 2], np.float32)
    for cond, expected in [(True, [4, 6]), (False, [-3, 8])]:
        assert run(part.path, {"cond": np.array(cond), "a": abs(x), "x": x})["y"].tolist() == expected


def test_a_value_inside_that_is_a_graph_output_is_an_output(tmp_path: Path) -> None:
    model = _model(
        tmp_path, "g (float[2] x) => (float[2] h, float[2] y) { h = Abs(x) i = Neg(h) y = Exp(i) }"
    )
    assert [spec.name for spec in extract(model, 0b111, tmp_path / "a").outputs] == ["h", "y"]
    assert [spec.name for spec in extract(model, 0b011, tmp_path / "b").outputs] == ["h", "i"]


def test_omitted_optional_inputs_stay_omitted(tmp_path: Path) -> None:
    model = _model(tmp_path, 'g (float[2] x, float h) => (float[2] y) { y = Clip(x, "", h) }')
    part = extract(model, 1, tmp_path / "p")
    assert [spec.name for spec in part.inputs] == ["x", "h"]
    feed = {"x": np.array([-5, 5], np.float32), "h": np.array(1, np.float32)}
    assert run(part.path, feed)["y"].tolist() == [-5, 1]


@pytest.mark.parametrize("nodes", [0, 0b101])
def test_extract_refuses_empty_and_non_convex_sets(tmp_path: Path, nodes: int) -> None:
    model = _model(tmp_path, "g (float[2] x) => (float[2] y) { a = Abs(x) b = Neg(a) y = Add(a, b) }")
    with pytest.raises(ModelError, match="convex"):
        extract(model, nodes, tmp_path / "p")


def test_large_weights_go_beside_the_file(
    normalized: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = normalized("light_squeezenet")
    monkeypatch.setattr(weights, "INLINE_LIMIT_BYTES", 1 << 10)
    part = extract(model, model.index.all_nodes, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.weights"]
    assert part.path.stat().st_size < 1 << 17
    feed = feed_for(part.inputs)
    assert_equal(run(part.path, feed), run(model.path, feed))


class TestWithOutputs:
    def test_inner_values_are_given(self, normalized: Open, tmp_path: Path) -> None:
        model = normalized("silero_16k")
        inner = [node.outputs[0] for node in model.index.nodes[::7]]
        path = with_outputs(model, inner, tmp_path)
        onnx.checker.check_model(str(path))
        feed = feed_for((model.index.values[n] for n in model.index.inputs), "silero_16k")
        found = run(path, feed)
        assert list(found) == list(dict.fromkeys((*model.index.outputs, *inner)))
        assert_equal({n: found[n] for n in model.index.outputs}, run(model.path, feed))
        for name in inner:
            assert found[name].shape == model.index.values[name].shape

    def test_unknown_values_are_named(self, normalized: Open, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="'ghost'"):
            with_outputs(normalized("silero_16k"), ["ghost"], tmp_path)

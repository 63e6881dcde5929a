"""ONNX's own tests over the executor: every node a partition of its own, on alternating targets."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase

from collage.partitioner.errors import BadInputError, NoPlanError
from tests.collage.runtime import onnx_suite, onnx_suite_list
from tests.collage.runtime.onnx_backend import CollageBackend
from tests.collage.runtime.onnx_suite import FIRST

SELDOM = 3
TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3] x) => (float[N, 3] y) {
    a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Add(c, x)
}"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "way"), list(enumerate(FIRST)), ids=FIRST)
def test_a_third_of_the_suite_in_each_way(number: int, way: str) -> None:
    """What is not listed passes; what is listed fails, so that the list stays true.

    A runtime that crashes where it should not is no failure of ours, as long as the test passes without
    it; but runtimes crash seldom, so several such tests show a fault in the suite's driver.
    """
    content = onnx_suite_list.listed()
    now = {name: version(name) for name in content["versions"]}
    assert content["versions"] == now, (
        "run `python -m tests.collage.runtime.onnx_suite_list` for these versions"
    )
    cases = _third(list(onnx_suite.collect().values()), number)
    found = onnx_suite.outcomes(way, cases)
    failing = onnx_suite_list.failing(way)
    broken = {t: v.reason for t, v in found.items() if v.reason and t not in failing}
    mended = {t for t, v in found.items() if not v.reason and t in failing and not v.crashed}
    crashed = {t: v.crashed for t, v in found.items() if v.crashed}
    assert not broken, "these are not listed, and fail"
    assert len(crashed) <= SELDOM, "these pass only without the runtime that crashes"
    assert not mended, "these are listed, and pass: write the list anew"
    placed = {target.split()[0] for outcome in found.values() for target in outcome.targets}
    assert placed >= {"onnxruntime", "openvino"}


def _third(cases: Sequence[TestCase], number: int) -> list[TestCase]:
    return [case for i, case in enumerate(cases) if i % len(FIRST) == number]


@pytest.mark.slow
def test_crashing_target_loses_its_nodes_and_a_runtime_alone_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "faulty-6.66.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: faulty\nVersion: 6.66\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[collage.backends]\nfaulty = tests.backends.faulty:FaultyBackend\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    cases = onnx_suite.collect(["node"])
    found = onnx_suite.outcomes("faulty first", [cases["test_relu"], cases["test_det_2d"]], 1)
    assert [(v.reason, v.targets) for v in found.values()] == [("", ("onnxruntime",))] * 2
    assert all(v.crashed == "faulty -fault=crash-run: crash: SIGABRT" for v in found.values())


def test_listed_tests_have_a_reason_and_the_page_counts_them() -> None:
    content = onnx_suite_list.listed()
    assert all(len(group["reason"]) > 10 and group["tests"] for group in content["groups"])
    assert onnx_suite_list.table(content) in onnx_suite_list.PAGE.read_text(encoding="utf-8")
    for way in FIRST:
        assert content["tests"] - len(onnx_suite_list.failing(way)) == content["passed"][way]


def test_targets_alternate_and_inputs_bind_free_dimensions() -> None:
    model = onnx.parser.parse_model(TEXT)
    with_turns = CollageBackend.prepare(model)
    for rows in (2, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        (y,) = with_turns.run([x])
        np.testing.assert_allclose(y, x - np.exp(np.maximum(x, 0)), rtol=1e-5)
        assert [str(t) for t in with_turns.placed] == ["onnxruntime", "openvino"] * 2
    with pytest.raises(BadInputError, match="float32"):
        with_turns.run([np.zeros((2, 3), np.float64)])
    with pytest.raises(BadInputError, match="1 inputs, not 2"):
        with_turns.run([x, x])
    with_turns.close()
    with_turns.close()


def test_a_node_that_one_target_refuses_goes_to_the_next() -> None:
    """It is OpenVINO's turn at the second node, which it does not know; then it has the third."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2, 2] x) => (float y) {
        a = Relu(x)  b = Det(a)  y = Neg(b)
    }"""
    prepared = CollageBackend.prepare(onnx.parser.parse_model(text))
    (y,) = prepared.run([np.array([[2, 1], [0, 3]], np.float32)])
    assert y == -6.0
    assert [str(t) for t in prepared.placed] == ["onnxruntime", "onnxruntime", "openvino"]
    prepared.close()


def test_a_node_that_nobody_takes_is_named_with_each_reason() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (uint8[64] x) => (uint8[8, 8, 3] y) {
        y = ImageDecoder(x)
    }"""
    with pytest.raises(NoPlanError, match=r"ImageDecoder.*onnxruntime: .*openvino: "):
        CollageBackend.prepare(onnx.parser.parse_model(text))

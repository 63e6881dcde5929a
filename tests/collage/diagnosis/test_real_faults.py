"""Faults of real runtimes that guards keep from users, found in models of 500 nodes without the guard.

A test that fails after an upgrade of the runtime shows that its fault is gone; then the guard may go too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.contract import Unavailable
from collage.backends.registry import backend_of
from collage.diagnosis.diagnose import diagnose
from collage.diagnosis.request import DiagnoseRequest
from collage.options import TuneOptions
from collage.partitioner.target import Target

pytestmark = pytest.mark.slow
MOST_TRIALS, NODES = 40, 500


def found(folder: Path, model: onnx.ModelProto, target: str, inputs: Path | None = None) -> Any:
    chosen = Target.parse(target)
    if isinstance(backend_of(chosen).probe(), Unavailable):
        pytest.skip(f"{chosen.backend} is not installed")
    onnx.save(model, folder / "m.onnx")
    request = DiagnoseRequest(
        source=folder / "m.onnx",
        target=chosen,
        output=folder / "found",
        options=TuneOptions(threads=1),
        inputs=inputs,
        most_trials=MOST_TRIALS,
        all_nodes=True,
    )
    report = diagnose(request)
    assert report["nodes"] >= NODES - 5 and report["faults"]["trials"] <= MOST_TRIALS
    return report["faults"]["culprits"]


def shows(culprit: Any) -> None:
    """The script fails in a process of its own, with the runtime and numpy alone."""
    told = culprit["reproducer"]
    assert told["reproduced"] and not told["imports_collage"]
    script = Path(told["folder"]) / "reproduce.py"
    assert "collage" not in script.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr


def with_one(
    special: onnx.NodeProto,
    at: int,
    shape: Sequence[int],
    weights: Sequence[onnx.TensorProto] = (),
    around: Sequence[str] = ("Relu", "Sigmoid", "Exp", "Tanh"),
) -> onnx.ModelProto:
    """A chain of elementwise operators with one other node in it."""
    nodes, value = [], "x"
    for i in range(NODES):
        out = "y" if i == NODES - 1 else f"v{i}"
        if i == at:
            special.input[0], special.output[0] = value, out
            nodes.append(special)
        else:
            nodes.append(helper.make_node(around[i % len(around)], [value], [out], name=f"n{i}"))
        value = out
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_mnn_computes_gemm_with_a_transposed_operand_wrongly(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    gemm = helper.make_node("Gemm", ["x", "w"], ["y"], name="special", transA=1)
    weights = [numpy_helper.from_array(weight, "w")]
    (culprit,) = found(tmp_path, with_one(gemm, 498, (8, 8), weights), "mnn")
    assert culprit["nodes"] == ["special"] and culprit["outcome"] == "wrong"
    shows(culprit)


def test_mnn_selects_the_first_of_equal_elements(tmp_path: Path) -> None:
    largest = helper.make_node(
        "ArgMax", ["x"], ["y"], name="special", axis=1, select_last_index=1, keepdims=1
    )
    model = with_one(largest, NODES - 1, (1, 4, 8, 8), around=("Relu",))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, (1, 1, 8, 8)))
    (culprit,) = found(tmp_path, model, "mnn")
    assert culprit["nodes"] == ["special"] and culprit["outcome"] == "wrong"
    shows(culprit)


def test_ncnn_refuses_average_pooling_with_uneven_pads(tmp_path: Path) -> None:
    """Its converter does, so it is a refusal and no fault."""
    pool = helper.make_node(
        "AveragePool", ["x"], ["y"], name="special", kernel_shape=[2, 2], pads=[0, 0, 1, 1]
    )
    (culprit,) = found(tmp_path, with_one(pool, 498, (1, 4, 8, 8)), "ncnn")
    assert culprit["nodes"] == ["special"] and culprit["outcome"] == "refused"


LOOP = """<ir_version: 10, opset_import: ["" : 18]>
    m (float[4] x, int64 M) => (float[1] y)
    <float half = {0.5}> {
        %s
        [special] b, hist = Loop(M, , %s) <body = g (int64 i, bool c, float[4] v) => (bool d, float[4] w, float[4] s) {
            w = Mul(v, half)
            s = Identity(w)
            d = Identity(c)
        }>
        r = ReduceSum<keepdims = 1>(hist)
        y = Reshape(r, one)
    }"""


def test_openvino_keeps_what_a_loop_collected_before(tmp_path: Path) -> None:
    """It shows only where a sample with trips comes before one without."""
    steps = [f"v{i} = {('Relu', 'Sigmoid')[i % 2]}({f'v{i - 1}' if i else 'x'})" for i in range(NODES)]
    text = LOOP % ("\n".join(steps), f"v{NODES - 1}")
    model = onnx.parser.parse_model(text.replace("{0.5}>", "{0.5}, int64[1] one = {1}>"))
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.ones((2, 4), np.float32), M=np.array([3, 0], np.int64))
    culprits = found(tmp_path, model, "openvino", inputs)
    assert [c["nodes"] for c in culprits] == [["special"]]
    assert culprits[0]["values"]["sample"] == 1
    shows(culprits[0])

"""ncnn: what every backend must do, and weights of 16 bits."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir
import pytest

from collage.backends.contract import Available
from collage.backends.ncnn.backend import NcnnBackend
from collage.backends.numerics.comparison import output_error
from collage.backends.sandbox.run import run_in_child
from collage.backends.testing.conformance import BackendConformance
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import buffers, compiled, prepare
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target

BACKEND = NcnnBackend()
F16 = Target.parse("ncnn -precision=f16")


@pytest.mark.slow  # each conversion starts pnnx
class TestNcnn(BackendConformance):
    backend = BACKEND
    isolated = True


def dense_error(target: Target) -> float:
    """The error of two products, computed in a child: its runtime stays out of the tests' process."""
    (chosen,) = (case for case in CASES if case.name == "dense")
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(chosen, Path(text))
        executable = compiled(BACKEND, target, prepared.model, Path(text))
        made = buffers(prepared)
        executable.bind(prepared.inputs, made)
        executable.run()
        executable.close()
    return output_error("max", made, prepared.expected)


@pytest.mark.slow
@pytest.mark.skipif(not isinstance(BACKEND.probe(), Available), reason="ncnn is not installed")
@pytest.mark.skipif(BACKEND.check_target(F16) is not None, reason="the CPU reads no f16 weights")
def test_products_with_f16_weights_err_as_such_weights_do() -> None:
    exact, reduced = (run_in_child(dense_error, target) for target in (Target("ncnn"), F16))
    assert exact < 1e-5 < reduced < 5e-3


def converted(name: str) -> tuple[str, float]:
    """The text of a case's net, and its error; runs in a child."""
    (chosen,) = (case for case in CASES if case.name == name)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        prepared = prepare(chosen, folder)
        executable = compiled(BACKEND, Target("ncnn"), prepared.model, folder)
        made = buffers(prepared)
        executable.bind(prepared.inputs, made)
        executable.run()
        executable.close()
        (net,) = folder.rglob("ncnn.param")
        return net.read_text(encoding="utf-8"), output_error("max", made, prepared.expected)


@pytest.mark.slow
@pytest.mark.skipif(not isinstance(BACKEND.probe(), Available), reason="ncnn is not installed")
def test_products_of_one_row_read_a_vector() -> None:
    net, error = run_in_child(converted, "dense")
    assert "in0_to_vector" in net
    assert error < 1e-5


def test_regions_that_compute_nothing_are_refused() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 8] x) => (float[1, 8] y) {
       [drop] a = Dropout(x)
       [same] b = Identity(a)
       [clip] y = Relu(b)
    }
    """
    index = GraphIndex.from_ir(ir.from_onnx_text(text))
    reason = BACKEND.refuse_region(index, 0b011, Target("ncnn"))
    assert reason is not None and "computes" in reason
    assert BACKEND.refuse_region(index, 0b111, Target("ncnn")) is None


def test_f16_weights_are_refused_where_the_cpu_cannot_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Old:
        features = ("avx", "avx2", "sse4_2")

    monkeypatch.setattr("collage.backends.ncnn.backend.hardware", Old)
    reason = BACKEND.check_target(F16)
    assert reason is not None and "use -precision=f32" in reason
    assert BACKEND.check_target(Target("ncnn")) is None

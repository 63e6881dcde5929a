"""The simulated backend: right outputs at a stated precision after a stated time."""

import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from collage.backends.testing.conformance import BackendConformance
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import Prepared, compiled, prepare
from collage.backends.testing.simulated import SimulatedBackend, SimulatedExecutable, round_values
from collage.partitioner.target import Target


class TestSimulated(BackendConformance):
    backend = SimulatedBackend()
    target_options = "-precision=f32"


class TestSimulatedBf16(BackendConformance):
    backend = SimulatedBackend()
    tolerance = 0.05


def dense(folder: Path) -> Prepared:
    return prepare(next(case for case in CASES if case.name == "dense"), folder)


def error_of(target: str, folder: Path) -> float:
    prepared = dense(folder)
    executable = compiled(SimulatedBackend(), Target.parse(target), prepared.model, folder)
    executable.bind(prepared.inputs, [None])
    executable.run()
    error = np.max(np.abs(executable.results[0] - prepared.expected[0]))
    return float(error / np.max(np.abs(prepared.expected[0])))


@pytest.mark.parametrize(("precision", "low", "high"), [("bf16", 1e-4, 0.05), ("f16", 1e-6, 0.01)])
def test_simulated_outputs_have_the_stated_precision(
    tmp_path: Path, precision: str, low: float, high: float
) -> None:
    assert low < error_of(f"simulated -precision={precision}", tmp_path) < high


def test_a_call_takes_the_stated_time(tmp_path: Path) -> None:
    prepared = dense(tmp_path)
    target = Target.parse("simulated -speedup=0.01")
    executable = compiled(SimulatedBackend(), target, prepared.model, tmp_path)
    assert isinstance(executable, SimulatedExecutable)
    executable.bind(prepared.inputs, [None])
    start = time.perf_counter()
    executable.run()
    assert (time.perf_counter() - start) * 1e6 >= executable.call_us


def test_a_model_of_an_old_opset_is_rounded_alike(tmp_path: Path) -> None:
    """Before opset 13 no Cast makes bfloat16."""
    made = []
    x = np.random.default_rng(0).standard_normal((1, 256), np.float32)
    for opset in (11, 13):
        text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,256] x) => (float[1,256] y) {{ y = Abs (x) }}'
        model = ir.from_onnx_text(text)
        round_values(model, ir.DataType.BFLOAT16)
        ir.save(model, tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        made.append(session.run(None, {"x": x})[0])
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.array_equal(made[0], np.abs(x))

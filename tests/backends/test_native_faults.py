"""Faults of runtimes that docs/runtime-faults.md lists, each with its smallest model.

A test passes while the fault stands. One that fails after an upgrade says that its guard may go.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import openvino
import pytest

from collage.backends.contract import Available, Backend
from collage.backends.machine.hardware import hardware
from collage.backends.measurement.measure import measure
from collage.backends.measurement.request import MeasureRequest
from collage.backends.mnn.backend import MnnBackend
from collage.backends.ncnn.backend import NcnnBackend
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.openvino import executable as openvino_executable
from collage.backends.openvino.backend import OpenVinoBackend
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.cost import Infeasible
from collage.partitioner.target import Target
from tests.backends.test_runtime_traps import MASKED, computed, opened, write
from tests.partitioner.graphs import text_model

PAGE = Path(__file__).parents[2] / "docs/runtime-faults.md"

GRU_THEN_GATHER = """g (float[5,1,4] x) => (float[1,2] y)
    <float[1,6,4] w = {WEIGHTS}, float[1,6,2] r = {STATES}, int64 i = {0}> {
    o, h = GRU<hidden_size = 2>(x, w, r)
    y = Gather<axis = 0>(h, i)
}""".replace("WEIGHTS", ",".join(["0.1"] * 24)).replace("STATES", ",".join(["0.1"] * 12))
TRANSPOSED = f"""g (float[4,3] x) => (float[3,5] y) <float[4,5] w = {{{",".join(map(str, range(20)))}}}> {{
    y = Gemm<transA = 1>(x, w)
}}"""
VARIABLE_NORM = """g (float[1,3,2,2] x, float[3] s) => (float[1,3,2,2] y) {
    y = BatchNormalization(x, s, s, s, s)
}"""
SUM_OF_ONE = "g (float[4] x) => (float[4] y) { y = Sum(x) }"
DILATED_POOL = """g (float[1,3,8,8] x) => (float[1,3,6,6] y) {
    y = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(x)
}"""
LAST_OF_EQUALS = "g (float[4,8] x) => (int64[4,1] y) { y = ArgMax<axis = 1, select_last_index = 1>(x) }"
NOTHING = "g (float[1,4] x) => (float[1,4] y) { y = Identity(x) }"


def fate(backend: Backend, text: str, folder: Path) -> str:
    """What becomes of a model that is given to a runtime without asking the guards: `right`, `wrong`, or the error."""
    if not isinstance(backend.probe(), Available):
        pytest.skip(f"{backend.name} is not installed")
    model = write(text, folder)
    inputs = [np.ones(spec.static_shape, np.float32) for spec in model.inputs]
    (folder / "reference").mkdir()
    (folder / "tried").mkdir()
    expected = computed(OnnxRuntimeBackend(), model, folder / "reference", *inputs)
    limits = ChildLimits(timeout_s=60.0)
    try:
        made = run_in_child(computed, backend, model, folder / "tried", *inputs, limits=limits)
    except ChildFailed as failure:
        return failure.reason
    same = np.shape(made) == np.shape(expected) and np.allclose(made, expected, atol=1e-4)
    return "right" if same else "wrong"


@pytest.mark.parametrize(
    ("backend", "text", "expected", "guard"),
    [
        pytest.param(MnnBackend(), GRU_THEN_GATHER, "SIGFPE", "does not know", id="mnn-gru-gather"),
        pytest.param(MnnBackend(), TRANSPOSED, "wrong", "transA", id="mnn-gemm-transa"),
        pytest.param(MnnBackend(), VARIABLE_NORM, "(-11)", "no constants", id="mnn-variable-norm"),
        pytest.param(MnnBackend(), SUM_OF_ONE, "(-11)", "two or more", id="mnn-sum-of-one"),
        pytest.param(MnnBackend(), DILATED_POOL, "wrong", "dilations", id="mnn-dilated-pool"),
        pytest.param(MnnBackend(), LAST_OF_EQUALS, "wrong", "first index", id="mnn-last-index"),
        pytest.param(NcnnBackend(), NOTHING, "(-11)", "nothing in it", id="ncnn-no-operator"),
    ],
)
def test_fault_of_a_converter_stands(
    tmp_path: Path, backend: Backend, text: str, expected: str, guard: str
) -> None:
    assert expected in fate(backend, text, tmp_path)
    index, target = text_model(text).index, Target(backend.name)
    refusals = [
        backend.supports(index, 0, target),
        backend.refuse_region(index, index.all_nodes, target),
    ]
    assert any(guard in (refusal or "") for refusal in refusals)


def test_runtime_that_crashes_while_compiling_costs_one_candidate(tmp_path: Path) -> None:
    """A division by zero inside MNN, which is given whole models with a few nodes that its table lacks."""
    if not isinstance(MnnBackend().probe(), Available):
        pytest.skip("mnn is not installed")
    model = write(GRU_THEN_GATHER, tmp_path)
    write_samples(tmp_path / "in.npz", [{"x": np.ones((5, 1, 4), np.float32)}])
    write_samples(tmp_path / "out.npz", [{"y": np.ones((1, 2), np.float32)}])
    request = MeasureRequest(
        model=model,
        target=Target.parse("mnn"),
        inputs_path=tmp_path / "in.npz",
        expected_path=tmp_path / "out.npz",
        tolerance=1e-3,
        threads=1,
    )
    assert measure(request).cost == Infeasible("crash: SIGFPE (while compiling)")


def test_openvino_leaves_a_bare_input_unwritten(tmp_path: Path) -> None:
    """openvino-bare-input"""
    model = write("g (float[3] x) => (float[3] y, float[3] z) { y = Sum(x)  z = Exp(x) }", tmp_path)
    request = openvino.Core().compile_model(str(model.path), "CPU").create_infer_request()
    x, y = np.arange(3, dtype=np.float32), np.full(3, -1, np.float32)
    request.set_input_tensor(0, openvino.Tensor(x, shared_memory=True))
    request.set_output_tensor(0, openvino.Tensor(y, shared_memory=True))
    request.infer()
    assert y.tolist() == [-1, -1, -1]


def test_openvino_misreads_a_mask_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """openvino-bf16-mask"""
    backend = OpenVinoBackend()
    reason = backend.check_target(Target.parse("openvino -precision=bf16"))
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(openvino_executable, "shield_masks", lambda model, ov: False)
    model = write(MASKED, tmp_path)
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(spec.static_shape, np.float32) for spec in model.inputs]
    values[3][..., 11:] = np.finfo(np.float32).min
    made = []
    for chosen in ("f32", "bf16"):
        (tmp_path / chosen).mkdir()
        executable = opened(backend, model, tmp_path / chosen, precision=chosen)
        executable.bind(values, [None])
        executable.run()
        made.append(np.array(executable.results[0]))
        executable.close()
    assert not np.abs(made[1] - made[0]).max() < 0.02 * np.abs(made[0]).max()


def test_onnxruntime_lists_outputs_as_they_were_bound(tmp_path: Path) -> None:
    """onnxruntime-binding-order"""
    model = write("g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x)  z = Exp(x) }", tmp_path)
    session = ort.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(3, np.float32))
    for name in ("z", "y"):
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[1].numpy().tolist() == [-1, -1, -1]


def test_onnxruntime_overflows_without_vnni(tmp_path: Path) -> None:
    """onnxruntime-u8s8"""
    features = set(hardware().features)
    if "avx2" not in features or features & {"avx512_vnni", "avx_vnni", "amx_int8"}:
        pytest.skip("this processor adds such products in 32 bits")
    text = """g (uint8[1,64] x) => (int32[1,64] y) <int8[64,64] w = {WEIGHTS}> {
        y = MatMulInteger(x, w)
    }""".replace("WEIGHTS", ",".join(["127"] * 4096))
    model = write(text, tmp_path)
    x = np.full((1, 64), 255, np.uint8)
    session = ort.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x})[0].max() < 64 * 255 * 127


def test_page_lists_every_fault_that_is_tested() -> None:
    page = PAGE.read_text(encoding="utf-8")
    source = Path(__file__).read_text(encoding="utf-8")
    named = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    tested = {name for name in named if f'id="{name}"' in source or f'"""{name}"""' in source}
    elsewhere = {"openvino-loop"}
    assert named - elsewhere == tested

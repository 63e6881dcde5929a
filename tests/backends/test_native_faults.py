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
from tests.backends import fault_models as models
from tests.backends.test_runtime_traps import MASKED, computed, opened, write
from tests.partitioner.graphs import text_model

PAGE = Path(__file__).parents[2] / "docs/runtime-faults.md"


def _rising(shape: tuple[int, ...]) -> np.ndarray:
    """Small numbers of which neighbors differ, and some are equal."""
    return (np.arange(np.prod(shape), dtype=np.float32) % 5 - 1).reshape(shape)


def fate(backend: Backend, text: str, folder: Path, opset: int = 18) -> str:
    """What becomes of a model that is given to a runtime without asking the guards: `right`, `wrong`, or the error."""
    if not isinstance(backend.probe(), Available):
        pytest.skip(f"{backend.name} is not installed")
    model = write(text, folder, opset)
    inputs = [_rising(spec.static_shape) for spec in model.inputs]
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "text", "expected", "guard"),
    [
        pytest.param(
            MnnBackend(), models.GRU_THEN_GATHER, "SIGFPE", "does not know", id="mnn-gru-gather"
        ),
        pytest.param(MnnBackend(), models.TRANSPOSED, "wrong", "transA", id="mnn-gemm-transa"),
        pytest.param(
            MnnBackend(), models.VARIABLE_NORM, "(-11)", "no constants", id="mnn-variable-norm"
        ),
        pytest.param(MnnBackend(), models.SUM_OF_ONE, "(-11)", "two or more", id="mnn-sum-of-one"),
        pytest.param(MnnBackend(), models.DILATED_POOL, "wrong", "dilations", id="mnn-dilated-pool"),
        pytest.param(MnnBackend(), models.LAST_OF_EQUALS, "wrong", "first index", id="mnn-last-index"),
        pytest.param(MnnBackend(), models.TURNED_TO_SHAPE, "wrong", "other end", id="mnn-turned-shape"),
        pytest.param(MnnBackend(), models.TURNED_LOWER, "wrong", "other end", id="mnn-turned-lower"),
        pytest.param(
            MnnBackend(), models.TURNED_IN_GROUPS, "SIGSEGV", "other end", id="mnn-turned-groups"
        ),
        pytest.param(MnnBackend(), models.LOWER_POOL, "wrong", "other end", id="mnn-lower-pool"),
        pytest.param(
            MnnBackend(), models.POOL_IN_SPACE, "SIGSEGV", "axes of space", id="mnn-pool-in-space"
        ),
        pytest.param(
            MnnBackend(), models.THREE_TO_BROADCAST, "wrong", "two inputs", id="mnn-three-inputs"
        ),
        pytest.param(MnnBackend(), models.BACKWARD, "wrong", "negative steps", id="mnn-backward-slice"),
        pytest.param(MnnBackend(), models.CUTTING, "wrong", "negative pads", id="mnn-cutting-pad"),
        pytest.param(
            MnnBackend(), models.TRAINING_NORM, "wrong", "inference only", id="mnn-training-norm"
        ),
        pytest.param(MnnBackend(), models.LOWER_CONV, "wrong", "other end", id="mnn-lower-conv"),
        pytest.param(
            MnnBackend(), models.GLOBAL_IN_SPACE, "wrong", "axes of space", id="mnn-global-pool"
        ),
        pytest.param(MnnBackend(), models.NAMED_PAD, "SIGABRT", "Pad of all axes", id="mnn-named-pad"),
        pytest.param(MnnBackend(), models.NO_AXES, "wrong", "empty list", id="mnn-no-axes"),
        pytest.param(MnnBackend(), models.CUBIC, "wrong", "mode of Resize", id="mnn-cubic"),
        pytest.param(MnnBackend(), models.CEILED, "wrong", "mode of Resize", id="mnn-ceiled"),
        pytest.param(NcnnBackend(), models.LOWER_MEAN, "wrong", "equal pads", id="ncnn-lower-mean"),
        pytest.param(
            OpenVinoBackend(), models.PEEPHOLES, "wrong", "peepholes", id="openvino-peepholes"
        ),
        pytest.param(
            OpenVinoBackend(), models.TURNED_IN_GROUPS, "wrong", "groups", id="openvino-turned"
        ),
        pytest.param(OpenVinoBackend(), models.EXCLUDED, "wrong", "outside", id="openvino-excluded"),
        pytest.param(NcnnBackend(), models.NOTHING, "(-11)", "nothing in it", id="ncnn-no-operator"),
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


REDUCED = "g (float[2,3,4] x) => (float[K] y) { y = OP<keepdims = KEPT>(x) }"
POOLED = "g (float[1,3,8] x) => (float[1,3,7] y) { y = OP<kernel_shape = [2]>(x) }"
OF_ALL = [
    *(
        REDUCED.replace("OP", op).replace("KEPT", "0").replace("[K]", "")
        for op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
    ),
    REDUCED.replace("OP", "ReduceSum").replace("KEPT", "1").replace("K]", "1,1,1]"),
]
ONE_AXIS = [
    *(POOLED.replace("OP", op) for op in ("MaxPool", "AveragePool")),
    """g (float[1,2,4] x) => (float[1,1,6] y) <float[2,1,3] w = {1, 2, 3, 4, 5, 6}> { y = ConvTranspose(x, w) }""",
]
FOR_NCNN = [
    "g (float[1,2,4,8] x, float[1,2,8,3] w) => (float[1,2,4,3] y) { y = MatMul(x, w) }",
    "g (float[1,2,4] x) => (float[1,1,2] y) <float[1,2,3] w = {1, 2, 3, 4, 5, 6}> { y = Conv(x, w) }",
    "g (float[1,3,8] x) => (float[1,3,1] y) { y = GlobalAveragePool(x) }",
    "g (float[1,3,8] x) => (float[1,3,1] y) { y = GlobalMaxPool(x) }",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "text"),
    [
        *((MnnBackend(), text) for text in (*OF_ALL, *ONE_AXIS)),
        *((NcnnBackend(), text) for text in (*FOR_NCNN, *ONE_AXIS)),
    ],
)
def test_what_a_converter_gets_right_is_taken(backend: Backend, text: str, tmp_path: Path) -> None:
    assert fate(backend, text, tmp_path) == "right"
    assert backend.supports(text_model(text).index, 0, Target(backend.name)) is None


SOFTMAX, LOG_SOFTMAX = (models.FLAT.replace("OP", op) for op in ("Softmax", "LogSoftmax"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "text", "guard"),
    [
        pytest.param(MnnBackend(), LOG_SOFTMAX, "flattens", id="mnn-flat-log-softmax"),
        pytest.param(OpenVinoBackend(), SOFTMAX, "flattens", id="openvino-flat-softmax"),
        pytest.param(OpenVinoBackend(), models.MASKED_DROPOUT, "mask", id="openvino-dropout"),
    ],
)
def test_fault_with_models_of_old_opsets_stands(
    tmp_path: Path, backend: Backend, text: str, guard: str
) -> None:
    assert fate(backend, text, tmp_path, opset=11) == "wrong"
    refusal = backend.supports(text_model(text, 11).index, 0, Target(backend.name))
    assert guard in (refusal or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "text"), [(MnnBackend(), SOFTMAX), (OpenVinoBackend(), LOG_SOFTMAX)]
)
def test_old_softmax_that_is_right_is_taken(backend: Backend, text: str, tmp_path: Path) -> None:
    assert fate(backend, text, tmp_path, opset=11) == "right"
    assert backend.supports(text_model(text, 11).index, 0, Target(backend.name)) is None


def test_runtime_that_crashes_while_compiling_costs_one_candidate(tmp_path: Path) -> None:
    """A division by zero inside MNN, which is given whole models with a few nodes that its table lacks."""
    if not isinstance(MnnBackend().probe(), Available):
        pytest.skip("mnn is not installed")
    model = write(models.GRU_THEN_GATHER, tmp_path)
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


def test_onnxruntime_adds_to_the_running_mean_from_run_to_run(tmp_path: Path) -> None:
    """onnxruntime-running-mean"""
    model = write(models.RUNNING_MEAN, tmp_path)
    session = ort.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    x = np.ones((1, 1, 2, 2), np.float32)
    assert [float(session.run(None, {"x": x})[0][0]) for _ in range(2)] == [-0.5, -0.75]


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
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in row.split("`")[1::2]}
    tested = {name for name in named if f'id="{name}"' in source or f'"""{name}"""' in source}
    elsewhere = {"openvino-loop"}
    assert named - elsewhere == tested

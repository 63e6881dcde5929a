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
TURNED = """g (float[1,4,4,6] x) => (float[1,CHANNELS,8,12] y) <float[4,2,3,3] w = {WEIGHTS}> {
    y = ConvTranspose<strides = [2, 2], MORE>(x, w)
}""".replace("WEIGHTS", ",".join(str(i % 7) for i in range(72)))
TURNED_TO_SHAPE = TURNED.replace("MORE", "output_shape = [8, 12]").replace("CHANNELS", "2")
TURNED_LOWER = TURNED.replace("MORE", 'auto_pad = "SAME_LOWER"').replace("CHANNELS", "2")
TURNED_IN_GROUPS = TURNED.replace("MORE", "group = 4, output_shape = [8, 12]").replace("CHANNELS", "8")
LOWER_POOL = """g (float[1,4,4,6] x) => (float[1,4,2,6] y) {
    y = MaxPool<kernel_shape = [3, 1], strides = [2, 1], auto_pad = "SAME_LOWER">(x)
}"""
POOL_IN_SPACE = """g (float[1,3,4,4,4] x) => (float[1,3,3,3,3] y) {
    y = MaxPool<kernel_shape = [2, 2, 2]>(x)
}"""
THREE_TO_BROADCAST = (
    "g (float[3,4] x, float[3,4] z) => (float[3,4] y) <float s = {0.25}> { y = Min(x, s, z) }"
)
BACKWARD = """g (float[2,8] x) => (float[2,2] y)
    <int64[1] a = {7}, int64[1] b = {3}, int64[1] c = {1}, int64[1] d = {-2}> {
    y = Slice(x, a, b, c, d)
}"""
CUTTING = "g (float[2,8] x) => (float[2,8] y) <int64[4] p = {0, -1, 0, 1}> { y = Pad(x, p) }"
TRAINING_NORM = """g (float[2,3,2,2] x) => (float[2,3,2,2] y) <float[3] s = {1, 2, 3}> {
    y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s)
}"""
LAST_OF_EQUALS = "g (float[4,8] x) => (int64[4,1] y) { y = ArgMax<axis = 1, select_last_index = 1>(x) }"
NOTHING = "g (float[1,4] x) => (float[1,4] y) { y = Identity(x) }"


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


@pytest.mark.parametrize(
    ("backend", "text", "expected", "guard"),
    [
        pytest.param(MnnBackend(), GRU_THEN_GATHER, "SIGFPE", "does not know", id="mnn-gru-gather"),
        pytest.param(MnnBackend(), TRANSPOSED, "wrong", "transA", id="mnn-gemm-transa"),
        pytest.param(MnnBackend(), VARIABLE_NORM, "(-11)", "no constants", id="mnn-variable-norm"),
        pytest.param(MnnBackend(), SUM_OF_ONE, "(-11)", "two or more", id="mnn-sum-of-one"),
        pytest.param(MnnBackend(), DILATED_POOL, "wrong", "dilations", id="mnn-dilated-pool"),
        pytest.param(MnnBackend(), LAST_OF_EQUALS, "wrong", "first index", id="mnn-last-index"),
        pytest.param(MnnBackend(), TURNED_TO_SHAPE, "wrong", "other end", id="mnn-turned-shape"),
        pytest.param(MnnBackend(), TURNED_LOWER, "wrong", "other end", id="mnn-turned-lower"),
        pytest.param(MnnBackend(), TURNED_IN_GROUPS, "SIGSEGV", "other end", id="mnn-turned-groups"),
        pytest.param(MnnBackend(), LOWER_POOL, "wrong", "other end", id="mnn-lower-pool"),
        pytest.param(MnnBackend(), POOL_IN_SPACE, "SIGSEGV", "axes of space", id="mnn-pool-in-space"),
        pytest.param(MnnBackend(), THREE_TO_BROADCAST, "wrong", "two inputs", id="mnn-three-inputs"),
        pytest.param(MnnBackend(), BACKWARD, "wrong", "negative steps", id="mnn-backward-slice"),
        pytest.param(MnnBackend(), CUTTING, "wrong", "negative pads", id="mnn-cutting-pad"),
        pytest.param(MnnBackend(), TRAINING_NORM, "wrong", "inference only", id="mnn-training-norm"),
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
FLAT = "g (float[2,3,4] x) => (float[2,3,4] y) { y = OP<axis = 1>(x) }"


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


@pytest.mark.parametrize(
    ("op", "expected", "is_taken"), [("Softmax", "right", True), ("LogSoftmax", "wrong", False)]
)
def test_mnn_flattens_axes_of_old_softmax_alone(
    op: str, expected: str, is_taken: bool, tmp_path: Path
) -> None:
    text = FLAT.replace("OP", op)
    assert fate(MnnBackend(), text, tmp_path, opset=11) == expected
    refusal = MnnBackend().supports(text_model(text, 11).index, 0, Target("mnn"))
    assert (refusal is None) is is_taken


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
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in row.split("`")[1::2]}
    tested = {name for name in named if f'id="{name}"' in source or f'"""{name}"""' in source}
    elsewhere = {"openvino-loop"}
    assert named - elsewhere == tested

"""Known faults of runtimes: a test that fails after an upgrade shows that the fault is gone or new."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import Available, Backend, CompileContext, Executable, SubModel
from collage.backends.mnn.backend import MnnBackend
from collage.backends.ncnn.backend import NcnnBackend
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.openvino.backend import OpenVinoBackend
from collage.backends.sandbox.run import run_in_child
from collage.backends.support.conversion import write_explicit
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.partitioner.graphs import text_model

OLD_NET = """g (float[1,4,6,6] x) => (float[1,4,1,1] y) {
    p = MaxPool<kernel_shape = [2, 2]>(x)
    a = GlobalAveragePool(p)
    y = Softmax(a)
}"""


def write(text: str, folder: Path, opset: int = 18) -> SubModel:
    model = text_model(text, opset).ir
    ir.passes.common.ShapeInferencePass()(model)
    ir.save(model, folder / "model.onnx")
    index = GraphIndex.from_ir(model)
    specs = index.values
    inputs, outputs = tuple(specs[n] for n in index.inputs), tuple(specs[n] for n in index.outputs)
    return SubModel(folder / "model.onnx", inputs, outputs)


def opened(backend: Backend, model: SubModel, folder: Path, **options: str) -> Executable:
    if not isinstance(backend.probe(), Available):
        pytest.skip(f"{backend.name} is not installed")
    work = folder / "work"
    work.mkdir()
    target = Target(backend.name).with_options(**options)
    return backend.compile(model, target, CompileContext(1, work, cache_dir=folder / "cache"))


def computed(backend: Backend, model: SubModel, folder: Path, *inputs: np.ndarray) -> np.ndarray:
    executable = opened(backend, model, folder)
    executable.bind(inputs, [None] * len(model.outputs))
    executable.run()
    result = np.array(executable.results[0])
    executable.close()
    return result


def test_openvino_writes_an_output_that_is_a_bare_input(tmp_path: Path) -> None:
    """Left alone, OpenVINO 2026.4 never writes the array that such an output was bound to."""
    model = write("g (float[3] x) => (float[3] y, float[3] z) { y = Sum(x)  z = Exp(x) }", tmp_path)
    executable = opened(OpenVinoBackend(), model, tmp_path)
    x, y, z = np.arange(3, dtype=np.float32), *np.full((2, 3), -1, np.float32)
    executable.bind([x], [y, z])
    for _ in range(2):
        x += 1
        executable.run()
        assert y.tolist() == x.tolist()
        np.testing.assert_allclose(z, np.exp(x), rtol=1e-5)
    executable.close()


def test_openvino_renames_an_input_that_an_output_is(tmp_path: Path) -> None:
    """The replacement of a removed operator gets its names, so only the position identifies the input."""
    text = (
        "g (float[3] x, float[3] z) => (float[3] r, float[3] y) { r = Relu(z) [gone] y = Dropout(x) }"
    )
    executable = opened(OpenVinoBackend(), write(text, tmp_path), tmp_path)
    x, z = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    r, y = np.full((2, 3), -1, np.float32)
    executable.bind([x, z], [r, y])
    executable.run()
    assert (r.tolist(), y.tolist()) == (z.tolist(), x.tolist())
    executable.close()


def test_openvino_binds_by_name_when_an_input_was_optimized_away(tmp_path: Path) -> None:
    """An input that decides nothing is dropped from the compiled model, and the next ones move up."""
    text = """g (float[2,3] x, int64[0] axes, float[2,3] b) => (float[2,3] y) {
        r = ReduceSum<keepdims = 1, noop_with_empty_axes = 1>(x, axes)
        y = Add(r, b)
    }"""
    model = write(text, tmp_path)
    x, b = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    axes = np.zeros(0, np.int64)
    assert computed(OpenVinoBackend(), model, tmp_path, x, axes, b).tolist() == (x + b).tolist()


def test_onnxruntime_failed_session_prints_nothing_and_does_not_fall_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(Exception, match=r"model\.onnx"):
        opened(OnnxRuntimeBackend(), SubModel(tmp_path / "model.onnx", (), ()), tmp_path)
    assert capfd.readouterr().out == ""


def test_onnxruntime_takes_text_at_a_border_though_it_binds_none(tmp_path: Path) -> None:
    model = write(
        "g (string[2] x, string[2] z) => (string[2] y) { y = StringConcat(x, z) }", tmp_path, 20
    )
    x, z = (np.array(words, object) for words in (["a", ""], ["b", "é"]))
    assert computed(OnnxRuntimeBackend(), model, tmp_path, x, z).tolist() == ["ab", "é"]


def test_openvino_computes_in_float32_by_default(tmp_path: Path) -> None:
    model = write(
        "g (float[64,64] x, float[64,64] w) => (float[64,64] y) { y = MatMul(x, w) }", tmp_path
    )
    x, w = (np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) for i in (0, 1))
    assert np.max(np.abs(computed(OpenVinoBackend(), model, tmp_path, x, w) - x @ w)) < 1e-4


MASKED = """g (float[1,4,16,8] q, float[1,4,16,8] k, float[1,4,16,8] v, float[1,1,1,16] m)
    => (float[1,4,16,8] y) {
    t = Transpose<perm = [0, 1, 3, 2]>(k)
    s = MatMul(q, t)
    a = Add(s, m)
    p = Softmax<axis = -1>(a)
    y = MatMul(p, v)
}"""


def test_openvino_reads_a_mask_rightly_in_bf16(tmp_path: Path) -> None:
    """Left alone, the fused attention of OpenVINO 2026.4 takes a float32 mask for a bf16 one."""
    backend = OpenVinoBackend()
    reason = backend.check_target(Target("openvino").with_options(precision="bf16"))
    if reason is not None:
        pytest.skip(reason)
    model = write(MASKED, tmp_path)
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(spec.static_shape, np.float32) for spec in model.inputs]
    values[3][..., 11:] = np.finfo(np.float32).min
    made = {}
    for chosen in ("f32", "bf16"):
        (tmp_path / chosen).mkdir()
        executable = opened(backend, model, tmp_path / chosen, precision=chosen)
        executable.bind(values, [None])
        executable.run()
        made[chosen] = np.array(executable.results[0])
        executable.close()
    assert 0 < np.abs(made["bf16"] - made["f32"]).max() < 0.02 * np.abs(made["f32"]).max()


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_openvino_refuses_a_precision_that_the_cpu_lacks(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openvino

    class Core:
        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino, "Core", Core)
    reason = OpenVinoBackend().check_target(Target.parse(f"openvino -precision={precision}"))
    assert reason is not None and "does not compute in" in reason


def test_openvino_binds_arrays_of_long_long(tmp_path: Path) -> None:
    model = write("g (int64[3] x) => (int64[3] y) { y = Add(x, x) }", tmp_path)
    x = np.array([1, 2, 3], np.longlong)
    assert list(computed(OpenVinoBackend(), model, tmp_path, x)) == [2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("backend", [MnnBackend(), NcnnBackend()], ids=lambda b: b.name)
def test_defaults_that_converters_misread_are_made_explicit(backend: Backend, tmp_path: Path) -> None:
    model = write(OLD_NET, tmp_path, opset=11)
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    expected = computed(OnnxRuntimeBackend(), model, tmp_path, x)
    (tmp_path / "work").rmdir()
    found = run_in_child(computed, backend, model, tmp_path, x)
    assert np.allclose(found, expected, atol=1e-5)


def test_weights_outside_of_the_file_are_taken_inside(tmp_path: Path) -> None:
    weight = ir.Value(
        name="w",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape([8, 8]),
        const_value=ir.tensor(np.eye(8, dtype=np.float32), name="w"),
    )
    model = text_model("g (float[1,8] x, float[8,8] w) => (float[1,8] y) { y = MatMul(x, w) }").ir
    old = next(v for v in model.graph.inputs if v.name == "w")
    for node, position in list(old.uses()):
        node.replace_input_with(position, weight)
    model.graph.inputs.remove(old)
    model.graph.register_initializer(weight)
    ir.save(model, tmp_path / "model.onnx", external_data="weights", size_threshold_bytes=0)
    write_explicit(tmp_path / "model.onnx", tmp_path / "inside.onnx")
    (tmp_path / "weights").unlink()
    inside = ir.load(tmp_path / "inside.onnx").graph.initializers["w"].const_value
    assert inside is not None and np.array_equal(inside.numpy(), np.eye(8))


@pytest.mark.slow
def test_a_conversion_is_made_once_per_machine(tmp_path: Path) -> None:
    model = write(OLD_NET, tmp_path, opset=11)
    x = np.zeros((1, 4, 6, 6), np.float32)
    run_in_child(computed, NcnnBackend(), model, tmp_path, x)
    (cached,) = (tmp_path / "cache").glob("ncnn-*")
    stamp = (cached / "ncnn.param").stat().st_mtime_ns
    for leftover in (tmp_path / "work").iterdir():
        leftover.unlink()
    (tmp_path / "work").rmdir()
    run_in_child(computed, NcnnBackend(), model, tmp_path, x)
    assert [f.name for f in (tmp_path / "cache").glob("ncnn-*")] == [cached.name]
    assert (cached / "ncnn.param").stat().st_mtime_ns == stamp


def test_mnn_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = write(OLD_NET, tmp_path, opset=11)
    computed(MnnBackend(), model, tmp_path, np.zeros((1, 4, 6, 6), np.float32))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("g (float[4] x, float[4,3] w) => (float[3] y) { y = MatMul(x, w) }", "vector"),
        ("g (float[3,4] x, float[4] w) => (float[3] y) { y = MatMul(x, w) }", "vector"),
        (
            "g (float[1,3,2,2] x, float[3] s) => (float[1,3,2,2] y) "
            "{ y = BatchNormalization(x, s, s, s, s) }",
            "no constants",
        ),
    ],
)
def test_mnn_is_not_given_what_it_reads_beyond(body: str, reason: str) -> None:
    """A product of two vectors was killed on some machines and right on others: it cannot be tried."""
    index = text_model(body).index
    refusal = MnnBackend().supports(index, 0, Target("mnn"))
    assert refusal is not None and reason in refusal

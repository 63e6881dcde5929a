"""SmoothQuant: the float model stays the same, and int8 errs less where few channels are large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import SubModel
from collage.backends.numerics.reference import run_reference
from collage.backends.numerics.tensor_files import read_samples
from collage.backends.quantization.float_model import loaded
from collage.backends.quantization.smoothing import smooth
from collage.backends.registry import check_options, resolve
from collage.partitioner.errors import CollageError
from collage.partitioner.target import Target
from tests.backends.quantization.test_quantize import matrix, mlp, model_of, outputs_of, quantized

PLAIN, SMOOTH = (Target.parse(f"openvino -quant=static_int8{more}") for more in ("", " -smooth=on"))
BLOCK = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 32] x) => (float[4, 16] y, float[4, 8] z) {
   [norm] n = LayerNormalization<axis: int = -1>(x, s, o)
   [first] y = MatMul(n, w1)
   [second] z = Gemm<transB: int = 1>(n, w2, b)
}
"""


# The same written out, as models of older opsets have it.
WRITTEN_OUT = BLOCK.replace(
    "[norm] n = LayerNormalization<axis: int = -1>(x, s, o)",
    """[mean] m = ReduceMean<axes: ints = [-1]>(x)
   [centered] d = Sub(x, m)
   [square] q = Mul(d, d)
   [variance] v = ReduceMean<axes: ints = [-1]>(q)
   [deviation] t = Sqrt(v)
   [unit] u = Div(d, t)
   [scaled] k = Mul(u, s)
   [norm] n = Add(k, o)""",
)


def _block(folder: Path, text: str = BLOCK) -> SubModel:
    """A normalization with two channels that are a hundred times as large as the others."""
    random = np.random.default_rng(0)
    scale, bias = random.uniform(0.5, 2, 32), random.standard_normal(32)
    scale[[3, 17]] *= 100
    w1, w2 = matrix(32, 16), matrix(8, 32, 1)
    w1[[3, 17]] /= 100
    w2[:, [3, 17]] /= 100
    weights = {"s": scale, "o": bias, "w1": w1, "w2": w2, "b": np.ones(8)}
    return model_of(text, weights, folder)


def _error(made: SubModel, model: SubModel) -> float:
    """On the samples of the calibration, whose ranges hold every value."""
    samples = read_samples(model.calibration or model.path, model.inputs)
    pairs = [
        pair for s in samples for pair in zip(outputs_of(made, s), outputs_of(model, s), strict=True)
    ]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize("text", [BLOCK, WRITTEN_OUT], ids=["one operator", "written out"])
def test_the_float_model_computes_the_same(tmp_path: Path, text: str) -> None:
    model = _block(tmp_path, text)
    samples = read_samples(model.calibration or model.path, model.inputs)
    changed = loaded(model.path)
    assert smooth(changed, tmp_path / "x.onnx", samples) == 1
    ir.save(changed, tmp_path / "smooth-model.onnx")
    names = [spec.name for spec in model.outputs]
    for sample in samples:
        before = run_reference(model.path, sample, names)
        after = run_reference(tmp_path / "smooth-model.onnx", sample, names)
        for name in names:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-4)
    (norm,) = (
        node for node in changed.graph if node.name in ("norm", "scaled") and node.op_type != "Add"
    )
    scale = norm.inputs[1]
    assert scale is not None and scale.const_value is not None
    found = np.abs(scale.const_value.numpy())
    assert found.max() / np.median(found) < 10  # it was a hundred


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_int8_errs_less_with_it(tmp_path: Path, runtime: str) -> None:
    errors = []
    for number, more in enumerate(("", " -smooth=on")):
        (folder := tmp_path / f"{number}").mkdir()
        model = _block(folder)
        target = Target.parse(f"{runtime} -quant=static_int8{more}")
        errors.append(_error(quantized(model, target, folder), model))
    assert errors[1] < 0.5 * errors[0]


def test_a_partition_without_such_a_normalization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollageError, match="nothing here can be smoothed"):
        quantized(mlp(tmp_path), SMOOTH, tmp_path)


def test_what_others_read_too_stays(tmp_path: Path) -> None:
    """A residual sum reads the normalization: it must see the same values as before."""
    text = BLOCK.replace("float[4, 8] z) {", "float[4, 8] z, float[4, 32] r) {").replace(
        "[first]", "[sum] r = Add(n, x)\n   [first]"
    )
    random = np.random.default_rng(0)
    weights = {
        "s": random.uniform(0.5, 2, 32), "o": random.standard_normal(32),
        "w1": matrix(32, 16), "w2": matrix(8, 32, 1), "b": np.ones(8),
    }  # fmt: skip
    model = model_of(text, weights, tmp_path)
    samples = read_samples(model.calibration or model.path, model.inputs)
    assert smooth(loaded(model.path), tmp_path / "x.onnx", samples) == 0


def test_it_goes_with_static_int8_alone_and_is_told_apart() -> None:
    for text in ("openvino -smooth=on", f"{SMOOTH} -float=0"):
        target = Target.parse(text)
        reason = check_options(target).check_target(target)
        assert reason is not None and "-smooth" in reason
    backend = resolve(SMOOTH)
    assert str(backend.preparation(SMOOTH)) != str(backend.preparation(PLAIN))
    assert not backend.mixes_with(SMOOTH, Target.parse("openvino"))
    assert backend.unprepared(SMOOTH) == Target.parse("openvino")

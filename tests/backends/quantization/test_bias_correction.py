"""Biases of int8 kernels: right on average, whatever the kernel, and nothing else changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import SubModel
from collage.backends.quantization import quantize as quantization
from collage.partitioner.target import Target
from tests.backends.quantization.test_quantize import (
    MLP,
    STATIC,
    matrix,
    mlp,
    model_of,
    op_types,
    outputs_of,
    quantized,
)

OPENVINO = Target.parse("openvino -quant=static_int8")
CONV = """
<ir_version: 10, opset_import: ["" : OPSET]>
g (float[1, 16, 9, 9] x) => (float[1, 32, 9, 9] y) {
   [act] r = Relu(x)
   [conv] y = Conv<pads: ints = [1, 1, 1, 1], group: int = GROUP>(r, w BIAS)
}
"""
GEMM = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[64, 48] x) => (float[64, 24] y) {
   [act] r = Relu(x)
   [gemm] y = Gemm<transB: int = 1>(r, w)
}
"""


def conv(folder: Path, opset: int = 17, group: int = 1, bias: str = "") -> SubModel:
    text = CONV.replace("OPSET", str(opset)).replace("GROUP", str(group)).replace("BIAS", bias)
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((32, 16 // group, 3, 3))}
    return model_of(text, weights | ({"b": rng.standard_normal(32)} if bias else {}), folder)


def gemm(folder: Path) -> SubModel:
    return model_of(GEMM, {"w": np.random.default_rng(0).standard_normal((24, 48))}, folder)


def mean_shift(made: SubModel, model: SubModel, axes: tuple[int, ...]) -> float:
    """The mean error of each channel over unseen samples, relative to the channels' deviation."""
    rng = np.random.default_rng(7)
    differences, values = [], []
    for _ in range(12):
        sample = {s.name: rng.standard_normal(s.static_shape).astype(np.float32) for s in model.inputs}
        (ours,), (exact,) = outputs_of(made, sample), outputs_of(model, sample)
        differences.append((ours - exact).mean(axis=axes))
        values.append(exact)
    return float(np.sqrt((np.mean(differences, axis=0) ** 2).mean()) / np.std(values))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "axes"),
    [
        pytest.param(lambda d: conv(d), (0, 2, 3), id="conv"),
        pytest.param(lambda d: conv(d, bias=", b"), (0, 2, 3), id="biased conv"),
        pytest.param(lambda d: conv(d, group=4), (0, 2, 3), id="grouped conv"),
        pytest.param(lambda d: conv(d, opset=18), (0, 2, 3), id="reduction with axes as an input"),
        pytest.param(gemm, (0,), id="gemm"),
    ],
)
@pytest.mark.parametrize("target", [STATIC, OPENVINO], ids=str)
def test_channels_are_right_on_average(
    make: Callable[[Path], SubModel],
    axes: tuple[int, ...],
    target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shifts = []
    for corrected in (True, False):
        folder = tmp_path / str(corrected)
        folder.mkdir()
        model = make(folder)
        if not corrected:
            monkeypatch.setattr(quantization, "correct_biases", lambda *_: None)
        shifts.append(mean_shift(quantized(model, target, folder), model, axes))
    assert shifts[0] < shifts[1] / 2


def test_corrections_are_steps_of_the_accumulator(tmp_path: Path) -> None:
    graph = ir.load(quantized(conv(tmp_path, bias=", b"), STATIC, tmp_path).path).graph
    kernel = next(node for node in graph if node.op_type == "Conv")
    terms = [value.producer() for value in kernel.inputs]
    entry, weight, bias = (
        [v.const_value.numpy() for v in term.inputs[:2] if v.const_value] for term in terms
    )
    assert bias[0].dtype == np.int32
    np.testing.assert_allclose(bias[1], entry[-1] * weight[1], rtol=1e-6)


def test_a_product_hands_out_floats_to_openvino_and_is_corrected(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    for target, added in ((STATIC, 0), (OPENVINO, 1)):
        folder = tmp_path / target.backend
        folder.mkdir()
        made = quantized(model, target, folder)
        assert op_types(made).count("Add") == added
        assert [spec.name for spec in made.outputs] == [
            v.name for v in ir.load(made.path).graph.outputs
        ]
        last = next(n for n in ir.load(made.path).graph if n.op_type == "Gemm").outputs[0]
        assert {user.op_type for user, _ in last.uses()} == ({"QuantizeLinear"} if not added else set())


def test_a_product_that_is_an_output_keeps_its_name(tmp_path: Path) -> None:
    text = MLP.replace("[last] y = Gemm<transB: int = 1>(r, w2, b)", "[last] y = MatMul(r, w2)")
    model = model_of(text, {"w1": matrix(16, 32), "w2": matrix(32, 8, 1)}, tmp_path)
    graph = ir.load(quantized(model, OPENVINO, tmp_path).path).graph
    maker = graph.outputs[0].producer()
    assert graph.outputs[0].name == "y" and maker is not None and maker.op_type == "Add"


def test_bias_without_an_integer_kernel_stays_float(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 4, 8, 8] x) => (float[1, 8, 1, 1] y, float[1, 8, 8, 8] z) {
       [first] a = Conv<pads: ints = [1, 1, 1, 1]>(x, w1)
       [act] r = Relu(a)
       [pool] p = MaxPool<kernel_shape: ints = [1, 1]>(r)
       [second] c = Conv(p, w2)
       [last] s = Relu(c)
       [sum] z = Add(s, r)
       [mean] y = GlobalAveragePool(s)
    }
    """
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((8, 4, 3, 3)), "w2": rng.standard_normal((8, 8, 1, 1))}
    made = quantized(model_of(text, weights, tmp_path), STATIC, tmp_path)
    graph = ir.load(made.path).graph
    rounded = {node.inputs[0].name for node in graph if node.op_type == "QuantizeLinear"}
    # The clippings are in the kernels' ranges, the pooling passes int8 on; sums and means are outputs.
    assert rounded == {"x", "r", "p", "s"} and "Relu" not in op_types(made)

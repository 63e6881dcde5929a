"""Weights of 4 bits in blocks, rounded by what products read in samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.quantization import gram_matrices, kinds
from collage.backends.registry import resolve
from collage.partitioner.errors import CollageError
from collage.partitioner.target import Target
from tests.backends.quantization.test_error_feedback import gram_of, inputs_of
from tests.backends.quantization.test_quantize import (
    matrix,
    model_of,
    op_types,
    outputs_of,
    quantized,
)

Array = np.ndarray

GPTQ = Target.parse("onnxruntime -quant=block_int4_gptq")
NEAREST = Target.parse("onnxruntime -quant=block_int4")
# The inputs of the products are no whole number of blocks.
PRODUCTS = """
<ir_version: 10, opset_import: ["" : 11]>
g (float[40, 80] x) => (float[40, 24] y, float[3, 24] c) {
   [first] h = MatMul(x, w1)
   [last] y = Gemm<transB: int = 1>(h, w2, b)
   [fixed] c = MatMul(v, w3)
}
"""


def products(folder: Path) -> tuple[SubModel, Array]:
    """Two products of a row of values that go together and one of constants, and rows of no sample."""
    folder.mkdir(exist_ok=True)
    weights = {
        "w1": matrix(80, 48),
        "w2": matrix(48, 24, 1).T,
        "b": np.ones(24),
        "v": matrix(3, 80, 2),
        "w3": matrix(80, 24, 3),
    }
    weights["w1"][5] = 0
    model = model_of(PRODUCTS, weights, folder)
    rows = inputs_of(80, 240)
    write_samples(folder / "inputs.npz", [{"x": rows[i : i + 40]} for i in range(0, 200, 40)])
    return model, rows[200:]


def stored(model: SubModel, name: str) -> Array:
    tensor = ir.load(model.path).graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def both(folder: Path) -> tuple[SubModel, SubModel, SubModel, Array]:
    """The model, rounded by samples and to the nearest, and rows of no sample."""
    model, unseen = products(folder)
    for name in ("gptq", "nearest"):
        (folder / name).mkdir()
    made = quantized(model, GPTQ, folder / "gptq")
    return model, made, quantized(model, NEAREST, folder / "nearest"), unseen


def test_outputs_err_less_on_the_same_blocks(tmp_path: Path) -> None:
    model, made, nearest, unseen = both(tmp_path)
    assert op_types(made) == op_types(nearest) == ["MatMulNBits", "MatMulNBits", "Add", "MatMulNBits"]
    for name in ("first", "last"):
        for part in ("scales", "zeros"):
            np.testing.assert_array_equal(
                stored(made, f"{name}/{part}"), stored(nearest, f"{name}/{part}")
            )
        assert (stored(made, f"{name}/packed") != stored(nearest, f"{name}/packed")).any()
    exact = outputs_of(model, {"x": unseen})[:1]
    errors = [
        output_error("max", outputs_of(each, {"x": unseen})[:1], exact) for each in (made, nearest)
    ]
    assert 1e-4 < errors[0] < 0.85 * errors[1]


def test_what_reads_a_constant_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    _, made, nearest, _ = both(tmp_path)
    np.testing.assert_array_equal(stored(made, "fixed/packed"), stored(nearest, "fixed/packed"))


def test_zero_and_padding_stay_zero(tmp_path: Path) -> None:
    _, made, _, _ = both(tmp_path)
    packed, zeros = stored(made, "first/packed"), stored(made, "first/zeros")
    whole = np.stack([packed & 15, packed >> 4], axis=-1).reshape(48, 96)
    zero = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(48, -1)
    np.testing.assert_array_equal(whole[:, 5], zero[:, 0])
    np.testing.assert_array_equal(whole[:, 80:], np.repeat(zero[:, 2:3], 16, axis=1))


def test_parts_of_many_inputs_are_blocks_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, made, nearest, _ = both(tmp_path / "whole")
    monkeypatch.setattr(gram_matrices, "_MOST_INPUTS", 50)
    model, made_in_parts, _, unseen = both(tmp_path / "parts")
    packed = stored(made_in_parts, "first/packed")
    assert (packed != stored(made, "first/packed")).any()
    exact = outputs_of(model, {"x": unseen})[:1]
    errors = [
        output_error("max", outputs_of(each, {"x": unseen})[:1], exact)
        for each in (made_in_parts, nearest)
    ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_both_runtimes_read_what_samples_rounded(runtime: str, tmp_path: Path) -> None:
    target = Target.parse(f"{runtime} -quant=block_int4_gptq")
    model, unseen = products(tmp_path)
    made = quantized(model, target, tmp_path)
    executable = resolve(target).compile(made, target, CompileContext(1, tmp_path / "work"))
    executable.bind([unseen], [None] * 2)
    executable.run()
    # Each runtime rounds the products' inputs for itself.
    assert output_error("max", executable.results, outputs_of(made, {"x": unseen})) < 0.02
    executable.close()


def test_rounding_by_samples_needs_them(tmp_path: Path) -> None:
    model, _ = products(tmp_path)
    with pytest.raises(CollageError, match="needs samples"):
        quantized(SubModel(model.path, model.inputs, model.outputs), GPTQ, tmp_path)


def test_blocks_rounded_by_samples_have_a_cost_of_their_own() -> None:
    backend = resolve(GPTQ)
    ours, nearest = backend.preparation(GPTQ), backend.preparation(NEAREST)
    assert ours is not None and nearest is not None and ours.by != nearest.by
    assert (ours.calibrated, nearest.calibrated) == (True, False)
    assert backend.arithmetic(GPTQ) == backend.arithmetic(NEAREST)
    assert not backend.mixes_with(GPTQ, Target.parse("onnxruntime"))
    target = Target.parse("openvino -float=0 -quant=block_int4_gptq")
    assert "-float keeps nodes float" in (kinds.refuse_float(target) or "")


def test_gptq_of_onnxruntime_still_passes_no_error_on() -> None:
    """Where it does, it is to be used rather than ours."""
    from onnxruntime.quantization.neural_compressor.weight_only import gptq

    weights, gram = matrix(64, 8), gram_of(inputs_of(64, 400)).astype(np.float64)
    found, alone = (gptq(weights.copy(), each.copy()) for each in (gram, np.eye(64)))
    np.testing.assert_array_equal(found, alone)

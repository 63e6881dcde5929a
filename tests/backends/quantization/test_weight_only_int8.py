"""Products whose weights alone are int8 in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.machine.hardware import hardware
from collage.backends.quantization import gram_matrices
from collage.backends.quantization import quantize as quantization
from collage.backends.quantization.error_feedback import LARGEST
from collage.backends.registry import resolve
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.backends.quantization.test_float_nodes import partly
from tests.backends.quantization.test_quantize import (
    WEIGHTS,
    convs,
    error_of,
    matrix,
    mlp,
    model_of,
    op_types,
    outputs_of,
    quantized,
)


def stored_weights(model: SubModel) -> dict[str, np.ndarray]:
    """Int8 weights by the product that reads them."""
    found = {}
    for node in ir.load(model.path).graph:
        maker = None if len(node.inputs) < 2 or node.inputs[1] is None else node.inputs[1].producer()
        if maker is not None and maker.op_type == "DequantizeLinear":
            stored, scale = (value.const_value for value in maker.inputs[:2] if value is not None)
            assert stored is not None and stored.dtype == ir.DataType.INT8
            assert scale is not None and scale.shape == [stored.shape[maker.attributes.get_int("axis")]]
            found[node.name or ""] = stored.numpy()
    return found


def test_only_weights_of_products_are_int8(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    made = quantized(model, WEIGHTS, tmp_path)
    assert made.prepared
    assert sorted(op_types(made)) == sorted([*["DequantizeLinear"] * 2, "MatMul", "Relu", "Gemm"])
    weights = stored_weights(made)
    assert {name: array.shape for name, array in weights.items()} == {
        "first": (16, 32),
        "last": (8, 32),
    }
    assert np.abs(weights["first"]).max(axis=0).min() >= LARGEST - 1
    assert 1e-5 < error_of(made, model) < 0.02


def test_many_inputs_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = mlp(tmp_path)
    whole = stored_weights(quantized(model, WEIGHTS, tmp_path))
    monkeypatch.setattr(gram_matrices, "_MOST_INPUTS", 12)
    (tmp_path / "parts").mkdir()
    made = quantized(model, WEIGHTS, tmp_path / "parts")
    assert any((array != whole[name]).any() for name, array in stored_weights(made).items())
    assert error_of(made, model) < 0.02


def test_little_memory_takes_more_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = mlp(tmp_path)
    whole = quantized(model, WEIGHTS, tmp_path)
    monkeypatch.setattr(gram_matrices, "_MOST_BYTES", 1)
    (tmp_path / "again").mkdir()
    again = quantized(model, WEIGHTS, tmp_path / "again")
    assert again.path.read_bytes() == whole.path.read_bytes()


def test_weights_that_two_products_share(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[4, 16] x) => (float[4, 16] y) {
       [one] h = MatMul(x, w)
       [two] y = Gemm<transB: int = 1>(h, w)
    }
    """
    model = model_of(text, {"w": matrix(16, 16)}, tmp_path)
    made = quantized(model, WEIGHTS, tmp_path)
    assert set(stored_weights(made)) == {"one", "two"}
    assert error_of(made, model) < 0.03


def test_a_product_of_constants_stays_float(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[4, 16] x) => (float[4, 16] y) {
       [fixed] c = MatMul(v, w)
       [read] h = MatMul(x, w)
       [sum] y = Add(h, c)
    }
    """
    model = model_of(text, {"v": matrix(4, 16), "w": matrix(16, 16, 1)}, tmp_path)
    assert set(stored_weights(quantized(model, WEIGHTS, tmp_path))) == {"read"}


def test_weight_only_int8_refuses_convolutions_and_lacking_samples(tmp_path: Path) -> None:
    model = convs(tmp_path)
    index = GraphIndex.from_ir(ir.load(model.path))
    said = resolve(WEIGHTS).refuse_region(index, index.all_nodes, WEIGHTS)
    assert said is not None and "Conv is not one of MatMul, Gemm" in said
    products = mlp(tmp_path)
    with pytest.raises(CollageError, match="needs samples"):
        quantized(SubModel(products.path, products.inputs, products.outputs), WEIGHTS, tmp_path)


def test_nodes_may_stay_float(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    made = partly(model, WEIGHTS, [0, 1], tmp_path)
    assert set(stored_weights(made)) == {"last"}
    assert 1e-5 < error_of(made, model) < 0.02


def test_parts_are_cut_out_of_the_whole(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    whole = quantized(model, WEIGHTS, tmp_path)
    graph = ir.load(model.path).graph
    ir.save(
        ir.Model(ir.convenience.extract(graph, ["x"], ["r"]), ir_version=10), tmp_path / "part.onnx"
    )
    result = TensorSpec("r", "float32", (4, 32))
    part = SubModel(tmp_path / "part.onnx", model.inputs, (result,))
    cut = quantization.Int8Parts(whole, model).cut(part, tmp_path / "cut.onnx")
    assert cut is not None
    np.testing.assert_array_equal(stored_weights(cut)["first"], stored_weights(whole)["first"])


PRODUCT = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[32, 512] x) => (float[32, 256] y) { [only] y = MatMul(x, w) }
"""


def product_on(target: Target, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A product with int8 weights: outputs of a target, of the file as it is, and with float weights.

    It reads large numbers that count for nothing, and small ones beside them.
    """
    weights = matrix(512, 256)
    weights[:64] = 0
    model = model_of(PRODUCT, {"w": weights}, folder)
    made = quantized(model, WEIGHTS, folder)
    x = np.random.default_rng(3).standard_normal((32, 512)).astype(np.float32)
    x[:, :64] *= 1000
    (folder / "compiled").mkdir()
    executable = resolve(target).compile(made, target, CompileContext(1, folder / "compiled"))
    executable.bind([x], [None])
    executable.run()
    (ours,) = executable.results
    executable.close()
    (file,), (exact,) = outputs_of(made, {"x": x}), outputs_of(model, {"x": x})
    return ours, file, exact


def test_large_numbers_cost_others_nothing(tmp_path: Path) -> None:
    """One scale for a whole tensor or row would leave nothing of what is a thousandth of the largest."""
    ours, _, exact = product_on(WEIGHTS, tmp_path)
    assert np.abs(ours - exact).max() < 0.02 * np.abs(exact).max()


# What OpenVINO does without them was not seen on any machine yet: it may compute such products in float.
@pytest.mark.slow
@pytest.mark.skipif("avx512_vnni" not in hardware().features, reason="no int8 dot products (VNNI)")
def test_the_runtime_rounds_what_products_read(tmp_path: Path) -> None:
    ours, file, _ = product_on(WEIGHTS, tmp_path)
    assert 1e-4 * np.abs(file).max() < np.abs(ours - file).max()


@pytest.mark.slow
def test_model_with_int8_weights_is_computed_exactly(tmp_path: Path) -> None:
    """Left alone, OpenVINO would round what its products read."""
    ours, file, _ = product_on(Target.parse("openvino"), tmp_path)
    assert np.abs(ours - file).max() < 1e-5 * np.abs(file).max()


def test_weight_only_int8_states_which_weights_are_in_the_file() -> None:
    said = resolve(WEIGHTS).arithmetic(WEIGHTS)
    assert (said.numbers, said.in_file) == ("int8: weights in the file, products", False)
    assert "products with constant weights" in said.sense and "convolutions" not in said.sense

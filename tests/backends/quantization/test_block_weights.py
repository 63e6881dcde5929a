"""Products whose weights have 4 or 8 bits, with a scale for each block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.numerics.comparison import output_error
from collage.backends.quantization import kinds
from collage.backends.quantization.quantize import Int8Parts
from collage.backends.registry import resolve
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.backends.quantization.test_quantize import (
    convs,
    error_of,
    matrix,
    model_of,
    op_types,
    outputs_of,
    quantized,
)

# The inputs of the first product are no whole number of blocks.
PRODUCTS = """
<ir_version: 10, opset_import: ["" : 11]>
g (float[4, 80] x) => (float[4, 48] y) {
   [first] h = MatMul(x, w1)
   [act] r = Relu(h)
   [last] y = Gemm<transB: int = 1>(r, w2, b)
}
"""
KINDS = {kinds.BLOCK_INT8: 0.02, kinds.BLOCK_INT4: 0.2}


def products(folder: Path) -> SubModel:
    weights = {"w1": matrix(80, 128), "w2": matrix(128, 48, 1).T, "b": np.ones(48)}
    model = model_of(PRODUCTS, weights, folder)
    return SubModel(model.path, model.inputs, model.outputs)  # without samples


def target_of(runtime: str, kind: str) -> Target:
    return Target.parse(f"{runtime} -quant={kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_any_opset_have_weights_in_blocks(kind: str, tmp_path: Path) -> None:
    model = products(tmp_path)
    made = quantized(model, target_of("onnxruntime", kind), tmp_path)
    assert op_types(made) == ["MatMulNBits", "Relu", "MatMulNBits", "Add"]
    stored = ir.load(made.path).graph.initializers
    size = kinds.BLOCKS[kind]
    blocks = -(-80 // size)
    assert stored["first/packed"].shape == ir.Shape([128, blocks, size * kinds.BITS[kind] // 8])
    assert stored["first/scales"].shape == ir.Shape([128, blocks])
    assert "w1" not in stored and "w2" not in stored
    assert 1e-5 < error_of(made, model) < KINDS[kind]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("kind", KINDS)
def test_runtimes_read_blocks_alike(runtime: str, kind: str, tmp_path: Path) -> None:
    target = target_of(runtime, kind)
    made = quantized(products(tmp_path), target, tmp_path)
    sample = {"x": np.random.default_rng(3).standard_normal((4, 80)).astype(np.float32)}
    executable = resolve(target).compile(made, target, CompileContext(1, tmp_path / "work"))
    executable.bind([sample["x"]], [None])
    executable.run()
    # Each runtime rounds the products' inputs for itself.
    assert output_error("max", executable.results, outputs_of(made, sample)) < 0.02
    executable.close()


def test_a_part_of_the_model_has_the_same_blocks(tmp_path: Path) -> None:
    model = products(tmp_path)
    whole = quantized(model, target_of("onnxruntime", kinds.BLOCK_INT4), tmp_path)
    border = TensorSpec("h", "float32", (4, 128))
    asked = SubModel(tmp_path / "part.onnx", (border,), model.outputs)
    part = Int8Parts(whole, model).cut(asked, asked.path)
    assert part is not None and part.prepared
    assert op_types(part) == ["Relu", "MatMulNBits", "Add"]
    h = np.random.default_rng(4).standard_normal((4, 128)).astype(np.float32)
    float_part = model_of(
        """<ir_version: 10, opset_import: ["" : 11]>
        g (float[4, 128] h) => (float[4, 48] y) { [act] r = Relu(h) [last] y = Gemm(r, w2, b) }""",
        {"w2": matrix(128, 48, 1), "b": np.ones(48)},
        tmp_path,
    )
    wanted = outputs_of(float_part, {"h": h})
    assert 1e-3 < output_error("max", outputs_of(part, {"h": h}), wanted) < 0.2


def test_what_is_not_a_product_stays(tmp_path: Path) -> None:
    target = target_of("onnxruntime", kinds.BLOCK_INT4)
    model = convs(tmp_path)
    index = GraphIndex.from_ir(ir.load(model.path))
    assert "Conv is not one of" in (kinds.refuse_region(index, index.all_nodes, target) or "")
    with pytest.raises(CollageError, match="could be quantized"):
        quantized(model, target, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_says_that_products_are_rounded_inside(kind: str) -> None:
    for runtime in ("onnxruntime", "openvino"):
        target = target_of(runtime, kind)
        backend = resolve(target)
        said = backend.arithmetic(target)
        numbers = f"int{kinds.BITS[kind]}: weights in the file, products"
        assert (said.numbers, said.in_file) == (numbers, False)
        assert "few rows" in said.sense
        found = backend.preparation(target)
        assert found is not None and not found.calibrated and found.least_opset == 0


def test_nodes_cannot_stay_float_beside_blocks() -> None:
    target = Target.parse("openvino -float=0 -quant=block_int4")
    assert "-float keeps nodes float" in (kinds.refuse_float(target) or "")

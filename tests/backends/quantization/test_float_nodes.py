"""Nodes that stay float within an int8 partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.numerics.reference import run_reference
from collage.backends.numerics.tensor_files import read_samples
from collage.backends.quantization.float_nodes import (
    keeping,
    kept_nodes,
    positions_of,
    with_float,
    without_float,
)
from collage.backends.quantization.quantize import Int8Parts
from collage.backends.registry import resolve
from collage.partitioner.errors import CollageError, TargetError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.backends.quantization.test_quantize import matrix, model_of

INT8 = Target.parse("openvino -quant=static_int8")
ROUNDED = Target.parse("onnxruntime -quant=static_int8")

CNN = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 8, 12, 12] x) => (float[1, 8, 12, 12] r, float[1, 8, 12, 12] y) {
   [first] a = Conv<pads: ints = [1, 1, 1, 1]>(x, w1, b1)
   [clip] r = Relu(a)
   [second] c = Conv<pads: ints = [1, 1, 1, 1]>(r, w2, b2)
   [clip2] d = Relu(c)
   [third] e = Conv<pads: ints = [1, 1, 1, 1]>(d, w3, b3)
   [residual] y = Add(e, r)
}
"""
KERNELS = {"first": 0, "second": 2, "third": 4}


def cnn(folder: Path) -> SubModel:
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((8, 8, 3, 3)) / 8 for i in (1, 2, 3)}
    biases = {f"b{i}": rng.standard_normal(8) for i in (1, 2, 3)}
    return model_of(CNN, weights | biases, folder)


def partly(model: SubModel, target: Target, kept: list[int], folder: Path) -> SubModel:
    own = with_float(target, kept)
    work = folder / str(own).replace(" ", "_")
    work.mkdir()
    made = resolve(own).prepare(model, own, CompileContext(1, work))
    onnx.checker.check_model(str(made.path), full_check=True)
    assert made.prepared
    return made


def integer_kernels(model: SubModel) -> set[str | None]:
    """Names of products and convolutions that read what was rounded, weights included."""
    found = set()
    for node in ir.load(model.path).graph:
        if node.op_type in ("Conv", "MatMul", "Gemm"):
            makers = [value.producer() for value in node.inputs[:2] if value is not None]
            rounded = [maker is not None and maker.op_type == "DequantizeLinear" for maker in makers]
            assert rounded[0] or not rounded[1], f"{node.name} has int8 weights and a float input"
            if rounded[1]:
                found.add(node.name)
    return found


def values_of(model: SubModel, of: SubModel) -> dict[str, np.ndarray]:
    assert of.calibration is not None
    (sample, *_) = read_samples(of.calibration, of.inputs)
    return run_reference(model.path, sample, [spec.name for spec in of.outputs])


@pytest.mark.parametrize("positions", [[], [0], [0, 1, 2], [3, 5, 6, 7, 100], [2, 1]])
def test_positions_are_written_as_ranges(positions: list[int]) -> None:
    target = with_float(INT8, positions)
    assert positions_of(target) == set(positions)
    assert Target.parse(str(target)) == target
    assert without_float(target) == INT8
    resolve(target)


def test_positions_count_the_nodes_of_the_partition() -> None:
    nodes, kept = 0b1011_0110, 0b0011_0010
    target = keeping(INT8, nodes, kept | 1)
    assert positions_of(target) == {0, 2, 3}
    assert kept_nodes(target, nodes) == kept


@pytest.mark.slow
@pytest.mark.parametrize("target", [INT8, ROUNDED])
@pytest.mark.parametrize("kernels", [["first"], ["second"], ["third"], ["first", "third"]])
def test_kept_nodes_are_float_and_the_rest_int8(
    target: Target, kernels: list[str], tmp_path: Path
) -> None:
    model = cnn(tmp_path)
    kept = [KERNELS[name] for name in kernels] + [KERNELS[name] + 1 for name in kernels]
    made = partly(model, target, kept, tmp_path)
    assert integer_kernels(made) == set(KERNELS) - set(kernels)
    exact, found = values_of(model, model), values_of(made, model)
    if kernels[0] == "first":
        np.testing.assert_array_equal(found["r"], exact["r"])
    error = np.abs(found["y"] - exact["y"]).max() / np.abs(exact["y"]).max()
    assert 1e-6 < error < 0.05


def test_readers_of_values_rounded_by_an_integer_kernel_are_found(tmp_path: Path) -> None:
    """ONNX Runtime has no integer convolution whose result is not rounded."""
    model = cnn(tmp_path)
    for target, rounded in ((INT8, False), (ROUNDED, True)):
        graph = ir.load(partly(model, target, [2, 3, 4, 5], tmp_path).path).graph
        (second,) = [node for node in graph if node.name == "second"]
        read = second.inputs[0]
        assert read is not None
        maker = read.producer()
        assert maker is not None and (maker.op_type == "DequantizeLinear") == rounded


def test_a_clipping_that_the_rounding_did_comes_back(tmp_path: Path) -> None:
    model = cnn(tmp_path)
    whole = [node.op_type for node in ir.load(partly(model, ROUNDED, [], tmp_path).path).graph]
    made = partly(model, ROUNDED, [4], tmp_path)
    assert whole.count("Relu") < 2
    assert [node.op_type for node in ir.load(made.path).graph].count("Relu") > whole.count("Relu")
    assert values_of(made, model)["r"].min() >= 0.0


def test_a_product_loses_what_corrected_its_bias(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[4, 16] x) => (float[4, 16] h, float[4, 8] y) {
       [first] h = MatMul(x, w1)
       [between] s = Sigmoid(h)
       [second] y = MatMul(s, w2)
    }
    """
    weights = {"w1": matrix(16, 16), "w2": matrix(16, 8, 1)}
    model = model_of(text, weights, tmp_path)
    whole = ir.load(partly(model, INT8, [], tmp_path).path).graph
    assert {"first/shifted", "second/shifted"} <= {node.name for node in whole}
    made = partly(model, INT8, [0], tmp_path)
    assert "first/shifted" not in {node.name for node in ir.load(made.path).graph}
    assert integer_kernels(made) == {"second"}
    exact, found = values_of(model, model), values_of(made, model)
    np.testing.assert_array_equal(found["h"], exact["h"])
    assert np.abs(found["y"] - exact["y"]).max() > 0


def test_a_folded_normalization_stays_folded(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 8, 12, 12] x) => (float[1, 8, 12, 12] n, float[1, 8, 12, 12] y) {
       [first] a = Conv<pads: ints = [1, 1, 1, 1]>(x, w1)
       [norm] n = BatchNormalization(a, s, t, m, v)
       [second] y = Conv<pads: ints = [1, 1, 1, 1]>(n, w2)
    }
    """
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((8, 8, 3, 3)) / 8 for i in (1, 2)}
    norm = {name: rng.uniform(0.5, 1.5, 8) for name in "stmv"}
    model = model_of(text, weights | norm, tmp_path)
    made = partly(model, INT8, [0, 1], tmp_path)
    assert len(integer_kernels(made)) == 1
    exact, found = values_of(model, model), values_of(made, model)
    np.testing.assert_allclose(found["n"], exact["n"], rtol=1e-5, atol=1e-5)


def sub_model(inputs: list[str], outputs: list[str], folder: Path) -> SubModel:
    def specs(names: list[str]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, "float32", (1, 8, 12, 12)) for name in names)

    return SubModel(folder / "part.onnx", specs(inputs), specs(outputs))


def test_parts_are_cut_out_of_the_whole_in_int8(tmp_path: Path) -> None:
    model = cnn(tmp_path)
    for target in (INT8, ROUNDED):
        parts = Int8Parts(partly(model, target, [], tmp_path), model)
        part = parts.cut(sub_model(["r"], ["d"], tmp_path), tmp_path / "cut.onnx")
        assert part is not None and part.prepared
        onnx.checker.check_model(str(part.path), full_check=True)
        assert integer_kernels(part) == {"second"}
        r = values_of(model, model)["r"]
        found = run_reference(part.path, {"r": r}, ["d"])["d"]
        kept = values_of(partly(model, target, [0, 1, 4, 5], tmp_path), model)["y"]
        assert found.min() == 0.0  # the clipping is in it
        # What was cut out and what stayed int8 beside float nodes are the same kernel.
        weights = {name: matrix_of(model, name) for name in ("w3", "b3")}
        third = ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["" : 17]> '
            "g (float[1, 8, 12, 12] d, float[1, 8, 12, 12] r, float[8, 8, 3, 3] w3, float[8] b3) "
            "=> (float[1, 8, 12, 12] y) { e = Conv<pads: ints = [1, 1, 1, 1]>(d, w3, b3) y = Add(e, r) }"
        )
        ir.save(third, tmp_path / "third.onnx")
        given = {"d": found, "r": r, **weights}
        y = run_reference(tmp_path / "third.onnx", given, ["y"])["y"]
        step = 0.02 if target == ROUNDED else 1e-5  # there the result is rounded once more
        assert np.abs(y - kept).max() <= step * np.abs(kept).max()


def matrix_of(model: SubModel, name: str) -> np.ndarray:
    value = ir.load(model.path).graph.initializers[name].const_value
    assert value is not None
    return value.numpy()


def test_float_positions_beyond_the_whole_model_are_left_out(tmp_path: Path) -> None:
    model = cnn(tmp_path)
    parts = Int8Parts(partly(model, INT8, [], tmp_path), model)
    assert parts.cut(sub_model(["e", "r"], ["y"], tmp_path), tmp_path / "cut.onnx") is None
    unknown = replace(sub_model(["r"], ["d"], tmp_path), inputs=(TensorSpec("?", "float32", (1,)),))
    assert parts.cut(unknown, tmp_path / "cut.onnx") is None


def test_a_node_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollageError, match="names node 9, and this partition has 6"):
        partly(cnn(tmp_path), INT8, [9], tmp_path)


@pytest.mark.parametrize("text", ["openvino -float=1", "onnxruntime -quant=dynamic_int8 -float=1"])
def test_float_goes_with_static_int8(text: str) -> None:
    with pytest.raises(TargetError, match="-quant=static_int8"):
        resolve(Target.parse(text))


@pytest.mark.parametrize(
    ("ranges", "said"),
    [("7-3", "write 3-7"), ("0-1000000", "not of the form"), ("1,,2", "not of the form")],
)
def test_ranges_that_mean_nothing_are_refused(ranges: str, said: str) -> None:
    """A backward range would keep nothing, and an endless one fill the memory."""
    with pytest.raises(TargetError, match=said):
        resolve(Target.parse(f"openvino -quant=static_int8 -float={ranges}"))


def test_keeping_everything_float_is_no_int8_target(tmp_path: Path) -> None:
    model = cnn(tmp_path)
    index = GraphIndex.from_ir(ir.load(model.path))
    target = with_float(INT8, range(6))
    backend = resolve(target)
    said = backend.refuse_region(index, index.all_nodes, target)
    assert said is not None and "without -quant" in said
    assert backend.refuse_region(index, index.all_nodes, with_float(INT8, [0, 1])) is None


def test_a_partition_with_both_says_so() -> None:
    for target in (INT8, ROUNDED):
        assert resolve(target).arithmetic(target).numbers == "int8"
        mixed = with_float(target, [1])
        assert resolve(mixed).arithmetic(mixed).numbers == "int8 and float"

"""Int8 in the file: which nodes are quantized, the outputs, and the traps of the quantizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.numerics.reference import run_reference
from collage.backends.numerics.tensor_files import read_samples, write_samples
from collage.backends.quantization import kinds
from collage.backends.quantization import quantize as quantization
from collage.backends.quantization.static_int8 import widened
from collage.backends.registry import resolve, target_spec
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.target_spec import enumerate_candidates
from collage.partitioner.target import Target

DYNAMIC = Target.parse("onnxruntime -quant=dynamic_int8")
STATIC = Target.parse("onnxruntime -quant=static_int8")
WEIGHTS = Target.parse("openvino -quant=weights_int8")


def model_of(text: str, weights: dict[str, np.ndarray], folder: Path) -> SubModel:
    """A model from ONNX's text form, as a sub-model with two samples to calibrate with."""
    model = ir.from_onnx_text(text)
    for name, array in weights.items():
        tensor = ir.tensor(array.astype(np.float32), name=name)
        value = next(v for n in model.graph for v in n.inputs if v is not None and v.name == name)
        value.const_value, value.shape, value.dtype = tensor, ir.Shape(array.shape), tensor.dtype
        model.graph.register_initializer(value)
    path = folder / "model.onnx"
    ir.save(model, path)
    index = GraphIndex.from_ir(model)
    inputs = tuple(index.values[name] for name in index.inputs)
    outputs = tuple(index.values[name] for name in index.outputs)
    rng = np.random.default_rng(1)
    samples = [
        {s.name: rng.standard_normal(s.static_shape).astype(np.float32) for s in inputs}
        for _ in range(2)
    ]
    write_samples(folder / "inputs.npz", samples)
    return SubModel(path, inputs, outputs, folder / "inputs.npz")


def quantized(model: SubModel, target: Target, folder: Path) -> SubModel:
    work = folder / "work"
    work.mkdir()
    made = resolve(target).prepare(model, target, CompileContext(1, work))
    onnx.checker.check_model(str(made.path), full_check=True)
    return made


def outputs_of(model: SubModel, sample: dict[str, np.ndarray]) -> list[np.ndarray]:
    names = [spec.name for spec in model.outputs]
    return list(run_reference(model.path, sample, names).values())


def error_of(made: SubModel, model: SubModel) -> float:
    rng = np.random.default_rng(2)
    sample = {s.name: rng.standard_normal(s.static_shape).astype(np.float32) for s in model.inputs}
    pairs = zip(outputs_of(made, sample), outputs_of(model, sample), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def op_types(model: SubModel) -> list[str]:
    return [node.op_type for node in ir.load(model.path).graph]


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    weight: np.ndarray = np.random.default_rng(seed).standard_normal((rows, columns)) / rows**0.5
    return weight


MLP = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 16] x) => (float[4, 8] y) {
   [first] h = MatMul(x, w1)
   [act] r = Relu(h)
   [last] y = Gemm<transB: int = 1>(r, w2, b)
}
"""
CONVS = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 3, 12, 12] x) => (float[1, 8, 10, 10] y) {
   [conv] c = Conv<pads: ints = [0, 0, 0, 0]>(x, w)
   [norm] n = BatchNormalization(c, s, o, m, v)
   [act] y = Relu(n)
}
"""


def mlp(folder: Path) -> SubModel:
    weights = {"w1": matrix(16, 32), "w2": matrix(8, 32, 1), "b": np.ones(8)}
    return model_of(MLP, weights, folder)


def convs(folder: Path) -> SubModel:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)),
        **{"s": rng.uniform(0.5, 2, 8), "o": rng.standard_normal(8)},
        **{"m": rng.standard_normal(8), "v": rng.uniform(0.5, 2, 8)},
    }
    return model_of(CONVS, weights, folder)


def test_products_are_scaled_as_they_run(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    made = quantized(model, DYNAMIC, tmp_path)
    assert made.prepared and (made.inputs, made.outputs) == (model.inputs, model.outputs)
    assert op_types(made).count("MatMulInteger") == 2
    assert 0 < error_of(made, model) < 0.03
    weights = ir.load(made.path).graph.initializers.values()
    assert {v.dtype for v in weights if len(v.shape or ()) == 2} == {ir.DataType.INT8}
    assert not list(tmp_path.glob("*-inferred*"))


def test_convolutions_are_calibrated(tmp_path: Path) -> None:
    model = convs(tmp_path)
    made = quantized(model, STATIC, tmp_path)
    # Batch normalization is folded into the weights, or the kernel would end before it.
    assert "BatchNormalization" not in op_types(made)
    assert 0 < error_of(made, model) < 0.1
    assert any(v.dtype == ir.DataType.INT8 for v in ir.load(made.path).graph.initializers.values())


@pytest.mark.parametrize("target", [DYNAMIC, STATIC, WEIGHTS])
def test_the_same_bytes_each_time(target: Target, tmp_path: Path) -> None:
    made = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(quantized(mlp(folder), target, folder).path.read_bytes())
    assert made[0] == made[1]


def test_other_last_bits_of_the_samples_change_nothing(tmp_path: Path) -> None:
    made = []
    for number, factor in enumerate((1.0, 1.0 + 2e-7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = convs(folder)
        assert model.calibration is not None
        samples = read_samples(model.calibration, model.inputs)
        other = [{name: (v * np.float32(factor)) for name, v in s.items()} for s in samples]
        write_samples(model.calibration, other)
        made.append(quantized(model, STATIC, folder).path.read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("ends", [(-1.0, 1.0), (0.0, 3.1), (-0.7, 0.0), (1e-9, 2e5), (0.2, 0.3)])
def test_ranges_are_widened_by_little(ends: tuple[float, float]) -> None:
    low, high = widened(*np.array(ends, np.float32))
    assert low.dtype == high.dtype == np.float32
    assert low <= np.float32(ends[0]) and high >= np.float32(ends[1])
    np.testing.assert_allclose((low, high), ends, rtol=2**-7)


def test_a_cache_keeps_what_was_quantized_for_the_same_samples(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    cache = tmp_path / "cache"
    paths = []
    for number in range(3):
        work = tmp_path / f"work-{number}"
        work.mkdir()
        if number == 2:
            assert model.calibration is not None
            write_samples(model.calibration, [{"x": np.ones((4, 16), np.float32)}])
        paths.append(quantization.quantize(model, STATIC, CompileContext(1, work, cache)).path)
    assert paths[0] == paths[1] != paths[2]


def test_a_weight_that_two_gemms_share_is_not_turned_twice(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[4, 16] x) => (float[4, 16] y) {
       [one] h = Gemm<transB: int = 1>(x, w)
       [two] y = Gemm<transB: int = 1>(h, w)
    }
    """
    model = model_of(text, {"w": matrix(16, 16)}, tmp_path)
    assert error_of(quantized(model, DYNAMIC, tmp_path), model) < 0.05


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_copies_of_a_shared_bias_have_names_of_their_own(target: str, tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
       [one] b1 = Conv(x, w, b)
       [two] b2 = Conv(b1, w, b)
       [three] b3 = Conv(b2, w, b)
       [sum] y = Add(b1, b3)
    }
    """
    weights = {"w": matrix(8, 8).reshape(8, 8, 1, 1), "b": np.linspace(-1, 1, 8)}
    model = model_of(text, weights, tmp_path)
    static = Target.parse(f"{target} -quant=static_int8")
    assert error_of(quantized(model, static, tmp_path), model) < 0.3


def test_convolutions_stay_float_when_scaled_as_they_run(tmp_path: Path) -> None:
    model = convs(tmp_path)
    index = GraphIndex.from_ir(ir.load(model.path))
    assert kinds.quantizable(index, kinds.DYNAMIC) == 0
    assert kinds.quantizable(index, kinds.STATIC) == 1
    reason = kinds.refuse_region(index, index.all_nodes, DYNAMIC)
    assert reason is not None and "Conv is not one of MatMul, Gemm" in reason
    with pytest.raises(CollageError, match="could be quantized"):
        quantized(model, DYNAMIC, tmp_path)


def test_static_needs_samples(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    with pytest.raises(CollageError, match="needs samples"):
        quantized(SubModel(model.path, model.inputs, model.outputs), STATIC, tmp_path)


def test_only_partitions_with_something_to_quantize_are_offered(tmp_path: Path) -> None:
    from collage.partitioner.graph.model import Model

    model = Model.open(mlp(tmp_path).path)
    spec = target_spec(DYNAMIC)
    found = enumerate_candidates(model, [spec])
    offered = {candidate.nodes for candidate in found.candidates}
    assert model.index.all_nodes in offered and 0b010 not in offered and 0b001 in offered


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("[n] y = MatMul(x, x)", "no constant weights"),
        ("[n] y = Gemm<alpha: float = 2.0>(x, w)", "scales its terms"),
        ("[n] y = Relu(x)", "Relu is not one of MatMul, Gemm"),
    ],
)
def test_why_not(node: str, reason: str, tmp_path: Path) -> None:
    text = f"""
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[4, 4] x) => (float[4, 4] y) {{ {node} }}
    """
    weights = {"w": matrix(4, 4)} if "w)" in node else {}
    index = GraphIndex.from_ir(ir.load(model_of(text, weights, tmp_path).path))
    assert reason in (kinds.refusal(index, index.nodes[0], kinds.DYNAMIC) or "")


def test_old_opsets_have_no_scale_for_each_channel(tmp_path: Path) -> None:
    text = MLP.replace('["" : 17]', '["" : 12]')
    weights = {"w1": matrix(16, 32), "w2": matrix(8, 32, 1), "b": np.ones(8)}
    index = GraphIndex.from_ir(ir.load(model_of(text, weights, tmp_path).path))
    assert "need 13" in (kinds.refuse_region(index, 1, STATIC) or "")


def test_targets_state_the_precision_they_compute_in() -> None:
    for text, numbers in {
        "onnxruntime": "f32",
        "onnxruntime -quant=dynamic_int8": "int8",
        "openvino": "f32",
        "simulated": "bf16",
    }.items():
        target = Target.parse(text)
        said = resolve(target).arithmetic(target)
        assert said.numbers == numbers and said.in_file == (numbers != "bf16")

"""What lies between integer kernels as OpenVINO runs it: pools, strides, sums, constants and swishes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import SubModel
from collage.backends.quantization.float_model import move_strides
from collage.partitioner.target import Target
from tests.backends.quantization.test_float_nodes import partly, values_of
from tests.backends.quantization.test_quantize import model_of

INT8 = Target.parse("openvino -quant=static_int8")
TEXT = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 4, 19, 19] x) => (float[1, 16, 5, 5] y) {
   [stem] c = Conv<pads: ints = [1, 1, 1, 1]>(x, w0)
   [clip] r = Relu(c)
   [pool] p = MaxPool<kernel_shape: ints = [3, 3], strides: ints = [2, 2]>(r)
   [left] a = Conv<strides: ints = [2, 2]>(p, w1)
   [right] b = Conv<strides: ints = [2, 2]>(p, w2)
   [added] s = Sum(a, b)
   [clip2] t = Relu(s)
   [last] y = Conv(t, w3)
}
"""
LEFT, RIGHT = 3, 4


def residual(folder: Path) -> SubModel:
    random = np.random.default_rng(0)
    shapes = {"w0": (8, 4, 3, 3), "w1": (16, 8, 1, 1), "w2": (16, 8, 1, 1), "w3": (16, 16, 1, 1)}
    weights = {name: random.standard_normal(s) / np.prod(s[1:]) ** 0.5 for name, s in shapes.items()}
    return model_of(TEXT, weights, folder)


def types_as_run(model: SubModel) -> dict[str, list[str]]:
    """What OpenVINO computes in, by the type of its layers."""
    import openvino as ov

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    found: dict[str, list[str]] = {}
    for node in ov.compile_model(str(model.path), "CPU", settings).get_runtime_model().get_ops():
        facts = node.get_rt_info()
        if "layerType" in facts:
            kind, numbers = (facts[key].astype(str) for key in ("layerType", "runtimePrecision"))
            found.setdefault(str(kind), []).append(str(numbers))
    return found


def test_openvino_runs_all_in_integers(tmp_path: Path) -> None:
    model = residual(tmp_path)
    made = partly(model, INT8, [], tmp_path)
    types = types_as_run(made)
    assert types["Convolution"] == ["u8"] * 4
    assert set(types["Pooling"]) == {"u8"}
    assert not {"Eltwise", "MaxPool"} & set(types)
    exact, found = values_of(model, model), values_of(made, model)
    assert 0 < np.abs(found["y"] - exact["y"]).max() < 0.05 * np.abs(exact["y"]).max()


@pytest.mark.parametrize("kept", [[LEFT], [RIGHT], [LEFT, RIGHT]])
def test_a_float_kernel_with_strides_computes_the_same(kept: list[int], tmp_path: Path) -> None:
    model = residual(tmp_path)
    made = partly(model, INT8, kept, tmp_path)
    weights = [node.inputs[1].producer() for node in ir.load(made.path).graph if node.op_type == "Conv"]
    assert [weight is None for weight in weights].count(True) == len(kept)
    exact, found = values_of(model, model), values_of(made, model)
    assert 0 < np.abs(found["y"] - exact["y"]).max() < 0.05 * np.abs(exact["y"]).max()


def test_a_pool_that_only_float_kernels_read_is_not_rounded(tmp_path: Path) -> None:
    model = residual(tmp_path)
    made = ir.load(partly(model, INT8, [LEFT, RIGHT], tmp_path).path)
    pools = [node for node in made.graph if node.op_type == "MaxPool"]
    assert len(pools) == 2
    for pool in pools:
        maker = pool.inputs[0].producer() if pool.inputs[0] is not None else None
        assert maker is not None and maker.op_type != "DequantizeLinear"


def test_a_pool_that_tells_where_its_maxima_are_reads_floats(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 4, 9, 9] x) => (float[1, 4, 4, 4] y, int64[1, 4, 4, 4] places) {
       [first] c = Conv(x, w0)
       [pool] p, places = MaxPool<kernel_shape: ints = [3, 3], strides: ints = [2, 2]>(c)
       [last] y = Conv(p, w1)
    }
    """
    random = np.random.default_rng(0)
    model = model_of(text, {f"w{i}": random.standard_normal((4, 4, 1, 1)) for i in (0, 1)}, tmp_path)
    made = ir.load(partly(model, INT8, [], tmp_path).path)
    pool = next(node for node in made.graph if node.op_type == "MaxPool")
    assert [maker.op_type for maker in pool.predecessors()] == ["Conv"]


SCALED = """
<ir_version: 10, opset_import: ["" : {opset}]>
g (float[1, 8, 9, 9] x) => (float[1, 8, 9, 9] y) {{
   [first] c = Conv(x, w0)
   [wide] m = Mul(c, scale)
   [shift] a = Add(m, offset)
   [gate] g = HardSigmoid<alpha: float = 0.16666667, beta: float = 0.5>(a)
   [swish] s = Mul(a, g)
   [wide2] t = Mul(s, scale)
   [shift2] u = Add(t, offset)
   [last] y = Conv(u, w1)
}}
"""


def scaled(folder: Path, opset: int) -> SubModel:
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((8, 8, 1, 1)) / 3 for i in (0, 1)}
    constants = {"scale": np.full((1, 1, 1, 1), 1.5), "offset": np.full((1, 1, 1, 1), 0.3)}
    return model_of(SCALED.format(opset=opset), weights | constants, folder)


@pytest.mark.parametrize("opset", [13, 17])
def test_openvino_adds_constants_and_swishes_within_kernels(opset: int, tmp_path: Path) -> None:
    model = scaled(tmp_path, opset)
    made = partly(model, INT8, [], tmp_path)
    rounded = [n for n in ir.load(made.path).graph if n.op_type == "QuantizeLinear"]
    assert [node.inputs[0].name for node in rounded if node.inputs[0] is not None] == ["x", "u"]
    types = types_as_run(made)
    assert types["Convolution"] == ["u8", "u8"] and "HardSigmoid" not in types
    exact, found = values_of(model, model), values_of(made, model)
    assert 0 < np.abs(found["y"] - exact["y"]).max() < 0.03 * np.abs(exact["y"]).max()


@pytest.mark.parametrize("kept", [[0], [7], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]])
def test_nodes_of_a_swish_stay_float_as_others_do(kept: list[int], tmp_path: Path) -> None:
    model = scaled(tmp_path, 17)
    made = partly(model, INT8, kept, tmp_path)
    exact, found = values_of(model, model), values_of(made, model)
    assert 0 < np.abs(found["y"] - exact["y"]).max() < 0.03 * np.abs(exact["y"]).max()


def test_onnxruntime_rounds_what_it_adds(tmp_path: Path) -> None:
    made = partly(scaled(tmp_path, 17), Target.parse("onnxruntime -quant=static_int8"), [], tmp_path)
    rounded = [n for n in ir.load(made.path).graph if n.op_type == "QuantizeLinear"]
    read = {node.inputs[0].name for node in rounded if node.inputs[0] is not None}
    assert {"c", "t", "u"} <= read


@pytest.mark.parametrize(
    ("attributes", "moved"),
    [
        ("strides: ints = [2, 2]", True),
        ("strides: ints = [2, 1]", True),
        ('strides: ints = [3, 3], auto_pad = "SAME_UPPER"', True),
        ("strides: ints = [1, 1]", False),
        ("strides: ints = [2, 2], pads: ints = [1, 1, 1, 1]", False),
    ],
)
def test_strides_move_where_nothing_changes(attributes: str, moved: bool, tmp_path: Path) -> None:
    text = f"""
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 4, 8, 7] x) => (float[N, M, H, W] y) {{ [n] y = Conv<{attributes}>(x, w) }}
    """
    model = model_of(text, {"w": np.random.default_rng(0).standard_normal((6, 4, 1, 1))}, tmp_path)
    changed = ir.load(model.path)
    move_strides(changed)
    assert [node.op_type for node in changed.graph] == ["MaxPool"] * moved + ["Conv"]
    path = tmp_path / "changed.onnx"
    ir.save(changed, path)
    other = SubModel(path, model.inputs, model.outputs, model.calibration)
    np.testing.assert_array_equal(values_of(other, model)["y"], values_of(model, model)["y"])

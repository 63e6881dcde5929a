"""Int8 layers of ncnn: the integers and scales of the file, in the layers that have its weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import Available, CompileContext, SubModel, ready
from collage.backends.ncnn import int8_layers
from collage.backends.ncnn.backend import NcnnBackend
from collage.backends.ncnn.int8_layers import Kernel, with_integers, write_float
from collage.backends.registry import canonical
from collage.backends.sandbox.run import run_in_child
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.backends.quantization.test_quantize import (
    convs,
    mlp,
    model_of,
    op_types,
    outputs_of,
    quantized,
)

BACKEND = NcnnBackend()
INT8 = Target.parse("ncnn -quant=static_int8")
TILED = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 64, 16, 16] x) => (float[1, 64, 16, 16] y) {
   [conv] y = Conv<pads: ints = [1, 1, 1, 1]>(x, w)
}
"""
MIXED = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 8, 12, 12] x) => (float[1, 10] y) {
   [depthwise] a = Conv<group: int = 8, pads: ints = [1, 1, 1, 1]>(x, w1)
   [clip] b = Relu(a)
   [grouped] c = Conv<group: int = 2>(b, w2)
   [pool] d = GlobalAveragePool(c)
   [flat] e = Flatten(d)
   [last] y = Gemm<transB: int = 1>(e, w3, bias)
}
"""
needs_ncnn = pytest.mark.skipif(
    not isinstance(BACKEND.probe(), Available), reason="ncnn is not installed"
)


def mixed(folder: Path) -> SubModel:
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 1, 3, 3), "w2": (16, 4, 3, 3), "w3": (10, 16), "bias": (10,)}
    return model_of(MIXED, {n: rng.standard_normal(s) for n, s in shapes.items()}, folder)


@pytest.mark.parametrize("make", [convs, mlp, mixed])
def test_the_float_form_rounds_nothing(make: object, tmp_path: Path) -> None:
    assert callable(make)
    made = quantized(make(tmp_path), INT8, tmp_path)
    kernels = write_float(made.path, tmp_path / "float.onnx")
    plain = SubModel(tmp_path / "float.onnx", made.inputs, made.outputs)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(op_types(plain))
    assert [spec.name for spec in made.outputs] == [v.name for v in ir.load(plain.path).graph.outputs]
    rng = np.random.default_rng(2)
    sample = {s.name: rng.standard_normal(s.static_shape).astype(np.float32) for s in made.inputs}
    for ours, theirs in zip(outputs_of(plain, sample), outputs_of(made, sample), strict=True):
        assert 0 < np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max()
    in_groups = 2 if make is mixed else 0
    assert [kernel.integers is None for kernel in kernels[:in_groups]] == [True] * in_groups
    for kernel in kernels[in_groups:]:
        assert kernel.integers is not None and kernel.scales is not None and kernel.input_scale > 0
        wide = kernel.integers.reshape(len(kernel.scales), -1) * kernel.scales[:, None]
        assert np.array_equal(kernel.weights, wide.astype(np.float32).reshape(-1))


def test_a_range_around_zero_is_covered_by_its_largest_magnitude(tmp_path: Path) -> None:
    made = quantized(mlp(tmp_path), INT8, tmp_path)
    (first, _) = write_float(made.path, tmp_path / "float.onnx")
    scale, zero = (
        v.const_value.numpy() for v in _rounding_of(made.path, "x").inputs[1:] if v and v.const_value
    )
    ends = [(end - int(zero)) * float(scale) for end in (0, 255)]
    assert min(ends) < 0 < max(ends)
    assert first.input_scale == pytest.approx(127 / max(map(abs, ends)))


def _rounding_of(path: Path, name: str) -> ir.Node:
    nodes = [node for node in ir.load(path).graph if node.op_type == "QuantizeLinear"]
    return next(node for node in nodes if node.inputs[0] is not None and node.inputs[0].name == name)


NET = """7767517
3 3
Input in0 0 1 in0
Convolution one 1 1 in0 a 0=2 1=1 5=1 6=6
InnerProduct two 1 1 a out0 0=1 1=0 2=2
"""


def net(*weights: np.ndarray, bias: np.ndarray | None = None) -> bytes:
    first, second = weights
    words = [np.zeros(1, np.float32), first, np.zeros(0) if bias is None else bias]
    words += [np.zeros(1, np.float32), second]
    return b"".join(word.astype(np.float32).tobytes() for word in words)


FIRST, SECOND, BIAS = np.arange(1, 7), np.array([7, 8]), np.array([0.5, 0.25])


def kernel(weights: np.ndarray, scales: object, input_scale: float = 3.0) -> Kernel:
    wide = np.repeat(np.asarray(scales, np.float32), weights.size // np.size(scales))
    return Kernel(
        (weights * wide).astype(np.float32), weights.astype(np.int8), *_pair(scales, input_scale)
    )


def _pair(scales: object, input_scale: float) -> tuple[np.ndarray, float]:
    return np.asarray(scales, np.float32), input_scale


def test_integers_take_the_place_of_weights_and_scales_follow() -> None:
    one = kernel(FIRST, [1.0, 2.0])
    text, made = with_integers(NET, net(one.weights, SECOND, bias=BIAS), [Kernel(_f(SECOND)), one])
    assert text.splitlines()[3].endswith(" 8=1 31=64") and text.splitlines()[4] == NET.splitlines()[4]
    tag, scales = np.uint32(0x000D4B38), [1.0, 0.5, 3.0]
    wanted = tag.tobytes() + bytes([1, 2, 3, 4, 5, 6, 0, 0]) + _f(BIAS).tobytes() + _f(scales).tobytes()
    assert made == wanted + _f([0, *SECOND]).tobytes()


def _f(values: object) -> np.ndarray:
    return np.asarray(values, np.float32)


CHAIN = """7767517
6 7
Input in0 0 1 in0
Convolution one 1 1 in0 {first} 0=2 1=1 5=0 6=2
Split both 1 2 {first} b c
Convolution two 1 1 b {second} 0=1 1=1 5=0 6=2
Convolution three 1 1 c out1 0=1 1=1 5=0 6=2
ReLU last 1 1 {second} out0
"""


@pytest.mark.parametrize(
    ("first", "second", "third", "terms"),
    [
        ("a", "d", 5.0, [101, 1, 1]),  # both readers round in one scale
        ("a", "d", 6.0, [1, 1, 1]),
        ("a", "d", None, [1, 1, None]),  # one computes in float
        ("out2", "d", 5.0, [1, 1, 1]),  # the net gives the value out
    ],
)
def test_readers_get_integers_where_all_round_alike(
    first: str, second: str, third: float | None, terms: list[int | None]
) -> None:
    one, two = kernel(np.array([1, 2]), [1.0, 1.0], 3.0), kernel(np.array([3, 4]), [1.0], 5.0)
    last = Kernel(_f([5, 6])) if third is None else kernel(np.array([5, 6]), [1.0], third)
    stored = b"".join(_f([0, *k.weights]).tobytes() for k in (one, two, last))
    text, made = with_integers(CHAIN.format(first=first, second=second), stored, [one, two, last])
    lines = [line.split() for line in text.splitlines() if line.startswith("Convolution")]
    wanted = [
        words[-2:] if term is None else [f"8={term}", "31=64"]
        for words, term in zip(lines, terms, strict=True)
    ]
    assert [words[-2:] for words in lines] == wanted
    assert made[8:20] == _f([1, 1, 3.0]).tobytes()
    assert (made[20:24] == _f([5.0]).tobytes()) == (terms[0] == 101)


def test_changed_weights_have_no_scales() -> None:
    one = kernel(FIRST, [1.0, 1.0])
    with pytest.raises(CollageError, match="pnnx changed the weights of ncnn's layer two"):
        with_integers(NET, net(FIRST, SECOND + 1, bias=BIAS), [one, Kernel(_f(SECOND))])


def test_equal_weights_whose_inputs_differ_are_refused() -> None:
    ones = [kernel(FIRST, [1.0, 1.0], scale) for scale in (3.0, 4.0)]
    with pytest.raises(CollageError, match="layer one have several input scales"):
        with_integers(NET, net(FIRST, SECOND, bias=BIAS), [*ones, Kernel(_f(SECOND))])


def test_a_net_without_any_integer_layer_is_refused() -> None:
    kernels = [Kernel(_f(FIRST)), Kernel(_f(SECOND))]
    with pytest.raises(CollageError, match="use the target without -quant"):
        with_integers(NET, net(FIRST, SECOND, bias=BIAS), kernels)


def test_int8_stands_between_float32_only() -> None:
    reason = BACKEND.check_target(Target.parse("ncnn -quant=static_int8 -precision=bf16"))
    assert reason is not None and "use -precision=f32" in reason
    assert BACKEND.check_target(INT8) is None
    reason = BACKEND.check_target(Target.parse("ncnn -calibrate=mse"))
    assert reason is not None and "-quant=static_int8" in reason


def test_int8_has_costs_of_its_own_and_float_keeps_the_old_ones() -> None:
    assert not {"quant", "float", "calibrate", "smooth"} & set(
        dict(canonical(Target("ncnn"), 2).options)
    )
    assert dict(canonical(INT8, 2).options)["quant"] == "static_int8"
    assert BACKEND.mixes_with(INT8, Target("ncnn")) and BACKEND.preparation(INT8) is not None


def test_regions_without_weights_are_refused() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 8] x) => (float[1, 8] y) { [clip] y = Relu(x) }
    """
    index = GraphIndex.from_ir(ir.from_onnx_text(text))
    reason = BACKEND.refuse_region(index, 0b1, INT8)
    assert reason is not None and "no integer layer" in reason


def test_what_stays_float_in_ncnn_is_float_in_the_file(tmp_path: Path) -> None:
    model = mixed(tmp_path)
    made = quantized(model, INT8, tmp_path)
    wide = [v for v in ir.load(made.path).graph.initializers.values() if len(v.shape or ()) > 1]
    assert {(len(v.shape or ()), v.dtype) for v in wide} == {
        (4, ir.DataType.FLOAT),
        (2, ir.DataType.INT8),
    }
    index = GraphIndex.from_ir(ir.load(model.path))
    reason = BACKEND.refuse_region(index, 0b000111, INT8)
    assert reason is not None and "use the target without -quant" in reason
    assert BACKEND.refuse_region(index, 0b111111, INT8) is None


def tiled(folder: Path) -> SubModel:
    return model_of(TILED, {"w": np.ones((64, 64, 3, 3))}, folder)


def run(name: str, given: np.ndarray, large_tiles: bool) -> tuple[float, str]:
    """The error of a model of this module in int8, and the text of its net; runs in a child."""
    if large_tiles:
        int8_layers._WITHOUT_WINOGRAD = "31=0"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = {"mixed": mixed, "tiled": tiled}[name](folder)
        context = CompileContext(2, folder)
        executable = BACKEND.compile(ready(BACKEND, model, INT8, context), INT8, context)
        (spec,) = model.outputs
        made = np.full(spec.static_shape, np.nan, np.float32)
        executable.bind([given], [made])
        executable.run()
        executable.close()
        net_text = (folder / "ncnn.param").read_text(encoding="utf-8")
        (wanted,) = outputs_of(model, {"x": given})
        return float(np.abs(made - wanted).max() / np.abs(wanted).max()), net_text


@pytest.mark.slow  # pnnx converts
@needs_ncnn
def test_convolutions_in_groups_stay_float() -> None:
    given = np.random.default_rng(3).standard_normal((1, 8, 12, 12)).astype(np.float32)
    error, net_text = run_in_child(run, "mixed", given, False)
    assert 1e-5 < error < 0.06
    lines = [line.split() for line in net_text.splitlines()]
    in_groups = [words for words in lines if words[0] == "ConvolutionDepthWise"]
    assert ["8=1" in words for words in in_groups] == [False, False]
    assert ["8=1" in words for words in lines if words[0] == "InnerProduct"] == [True]


@pytest.mark.slow
@needs_ncnn
def test_sums_of_large_winograd_tiles_do_not_overflow() -> None:
    # Every weight and every input is the largest integer there is.
    given = np.full((1, 64, 16, 16), 4, np.float32)
    error, _ = run_in_child(run, "tiled", given, False)
    assert error < 0.01
    error, _ = run_in_child(run, "tiled", given, True)
    assert error > 0.1, "ncnn's tiles fit now: _WITHOUT_WINOGRAD may go"

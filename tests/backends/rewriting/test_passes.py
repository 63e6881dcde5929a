"""Every form computes what the form before it computed, and is written where it is meant to be and nowhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.backends.numerics.reference import run_reference
from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.conv1d_as_conv2d import conv1d_to_conv2d
from collage.backends.rewriting.passes.conv_bias import copy_shared_biases
from collage.backends.rewriting.passes.group_norm import expand_group_norm
from tests.forms import converted, parsed, weights
from tests.models import seeded_input

_SERIES = """g (float[2, 6, 40] x) => (float[2, 4, 20] y, float[2, 8, 1] z) {
    a = Conv <pads = [2, 2], dilations = [2]> (x, w, b)
    c = PRelu(a, slope)
    d = BatchNormalization(c, one, b, b, one)
    e = MaxPool <kernel_shape = [2], strides = [2]> (d)
    f = Pad <mode = "reflect"> (e, pads)
    h = Slice(f, from, to, axes)
    i, j = Split <axis = 1> (h, halves)
    k = Sigmoid(j)
    l = Mul(i, k)
    m = Mul(l, per_channel)
    n = Concat <axis = -2> (m, l)
    o = ConvTranspose <strides = [2], kernel_shape = [2], group = 2> (n, v)
    p = AveragePool <kernel_shape = [2], strides = [2], pads = [0, 0]> (o)
    q = Sub(p, middle)
    y = Add(q, along)
    z = ReduceMean <axes = [2], keepdims = 1> (h)
}"""


def test_one_axis_is_computed_as_an_image_of_one_row(tmp_path: Path) -> None:
    model = parsed(
        _SERIES,
        w=weights(8, 6, 3),
        b=np.abs(weights(8)) + 0.5,
        one=np.ones(8, np.float32),
        slope=weights(8, 1),
        pads=np.array([0, 0, 1, 0, 0, 2]),
        **{"from": np.array([1]), "to": np.array([21]), "axes": np.array([-1])},
        halves=np.array([4, 4]),
        per_channel=weights(1, 4, 1),
        v=weights(8, 2, 2),
        middle=np.array(0.25, np.float32),
        along=weights(20),
    )
    found, kinds, error = converted(model, conv1d_to_conv2d, tmp_path)
    assert found == 2 and error < 1e-6
    # In once; out for the two outputs.
    assert kinds.count("Reshape") == 3
    graph = RewriteGraph(model)
    ranks = {len(graph.shapes[n.output[0]]) for n in model.graph.node if n.op_type not in ("Reshape",)}
    assert ranks == {4}


@pytest.mark.parametrize(
    ("opset", "reduced", "rank"),
    [
        (17, "ReduceMax <axes = [2]> (a)", 4),
        (17, "ReduceMin <axes = [-1, 1], keepdims = 0> (a)", 4),
        (17, "ReduceMean <axes = [0, 1, 2], keepdims = 0> (a)", 4),
        (17, "ReduceL2 <axes = [1], keepdims = 0> (a)", 4),
        (17, "ReduceSum <keepdims = 0> (a, last)", 4),
        (18, "ReduceMax <keepdims = 0> (a, last)", 4),
        (17, "ReduceSum <noop_with_empty_axes = 1> (a, none)", 3),
        (17, "ReduceSumSquare <axes = [2]> (a)", 3),
    ],
)
def test_reduced_value_is_read_as_an_image(opset: int, reduced: str, rank: int, tmp_path: Path) -> None:
    model = parsed(
        f"g (float[2, 6, 40] x) => (float y) {{ a = Conv(x, w)   r = {reduced}   y = Exp(r) }}",
        opset,
        w=weights(4, 6, 3),
        last=np.array([-1]),
        none=np.array([], np.int64),
    )
    found, _, error = converted(model, conv1d_to_conv2d, tmp_path)
    assert found == 1 and error < 1e-6
    read = next(node.input[0] for node in model.graph.node if node.op_type.startswith("Reduce"))
    assert len(RewriteGraph(model).shapes[read]) == rank


def test_readers_without_an_image_form_get_their_own_shape(tmp_path: Path) -> None:
    """A Transpose, a softmax, and a sum with a value of another rank."""
    model = parsed(
        """g (float[2, 6, 40] x, float[1, 1, 1, 38] other) => (float[2, 38, 4] y, float[1, 2, 4, 38] z) {
            a = Conv(x, w)   b = Softmax <axis = -1> (a)   y = Transpose <perm = [0, 2, 1]> (b)   z = Add(a, other)
        }""",
        w=weights(4, 6, 3),
    )
    found, _, error = converted(model, conv1d_to_conv2d, tmp_path)
    assert found == 1 and error < 1e-6


def test_images_stay_as_they_are() -> None:
    text = "g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }"
    assert conv1d_to_conv2d(RewriteGraph(parsed(text, w=weights(4, 3, 3, 3)))) == 0


def group_norm(groups: int, shape: str, opset: int) -> onnx.ModelProto:
    return parsed(
        f"""g (float[{shape}] x) => (float[{shape}] y) {{
            a = Reshape(x, grouped)   b = InstanceNormalization <epsilon = 0.01> (a, scale, bias)
            d = Reshape(b, own)   y = Mul(d, per_channel)
        }}""",
        opset,
        grouped=np.array([0, groups, -1]),
        own=np.array([int(size) for size in shape.split(",")]),
        scale=np.ones(groups, np.float32),
        bias=np.zeros(groups, np.float32),
        per_channel=weights(1, 8, *[1] * (shape.count(",") - 1)),
    )


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("shape", ["2, 8, 30", "2, 8, 5, 6"])
@pytest.mark.parametrize(
    ("groups", "kinds"),
    [
        (1, {"ReduceMean": 2, "Pow": 1, "Div": 1}),
        (2, {"ReduceMean": 4, "Expand": 2}),
        (8, {"InstanceNormalization": 1}),
    ],
)
def test_group_norms_are_taken_apart(
    groups: int, kinds: dict[str, int], shape: str, opset: int, tmp_path: Path
) -> None:
    found, made, error = converted(group_norm(groups, shape, opset), expand_group_norm, tmp_path)
    assert found == 1 and error < 1e-6
    assert kinds.items() <= Counter(made).items()
    assert ("InstanceNormalization" in made) == ("InstanceNormalization" in kinds)


@pytest.mark.parametrize("change", ["scale", "bias", "read twice", "other shape"])
def test_lookalike_of_a_group_norm_stays(change: str) -> None:
    model = group_norm(2, "2, 8, 30", 17)
    graph = model.graph
    if change in ("scale", "bias"):
        which = next(tensor for tensor in graph.initializer if tensor.name == change)
        which.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2], np.float32), change))
    elif change == "read twice":
        graph.output.append(onnx.helper.make_tensor_value_info("b", 1, [2, 2, 120]))
    else:
        graph.node[2].input[1] = "flat"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 1, 8, 30]), "flat"))
        graph.output[0].type.tensor_type.shape.dim.add().dim_value = 30
    assert expand_group_norm(RewriteGraph(model)) == 0


def test_biases_that_are_shared_become_each_ones_own(tmp_path: Path) -> None:
    model = parsed(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 4, 4] y) {
            a = Conv(x, w, b)   c = Relu(a)   y = Conv(c, w, b)
        }""",
        w=weights(4, 4, 3, 3),
        b=weights(4),
    )
    found, _, error = converted(model, copy_shared_biases, tmp_path)
    assert found == 1 and error == 0
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    assert convolutions[0].input[2] != convolutions[1].input[2]
    assert convolutions[0].input[1] == convolutions[1].input[1]
    assert copy_shared_biases(RewriteGraph(model)) == 0


def test_weights_beside_the_file_stay_there(tmp_path: Path) -> None:
    model = parsed(
        "g (float[1, 8, 40] x) => (float[1, 16, 38] y) { y = Conv(x, w, b) }",
        w=weights(16, 8, 3),
        b=weights(16),
    )
    given = {"x": seeded_input((1, 8, 40), "float32", 1)}
    beside = tmp_path / "m.onnx"
    onnx.save(model, beside, save_as_external_data=True, location="m.weights", size_threshold=0)
    wanted = run_reference(beside, given, ["y"])["y"]
    proto = onnx.load(beside, load_external_data=False)
    assert conv1d_to_conv2d(RewriteGraph(proto)) == 1
    onnx.save(proto, beside)
    kept = {tuple(t.dims): t.data_location for t in proto.graph.initializer}
    assert kept[16, 8, 1, 3] == kept[16,] == onnx.TensorProto.EXTERNAL
    assert np.allclose(run_reference(beside, given, ["y"])["y"], wanted, atol=1e-6)

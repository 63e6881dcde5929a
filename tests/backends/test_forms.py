"""Every form computes what the form before it computed, and is written where it is meant to be and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from backends.form_biases import part_biases
from backends.form_graph import FormGraph
from backends.form_norms import take_norms_apart
from backends.form_two_d import to_two_d
from backends.form_winograd import to_winograd
from backends.reference import run_reference
from backends.verify import output_error
from tests.models import seeded_input

Array = npt.NDArray[Any]
Form = Callable[[FormGraph], int]


def _parsed(text: str, opset: int = 17, **constants: Array) -> onnx.ModelProto:
    """A model with named nodes, these constants, and outputs of the shapes that are inferred."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model


def _weights(*shape: int, seed: int = 0) -> Array:
    fan_in = int(np.prod(shape[1:])) or 1
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def _converted(model: onnx.ModelProto, form: Form, folder: Path) -> tuple[int, list[str], float]:
    """How many operators were written in a form, the operators that are there then, and the largest error of an output."""
    paths = folder / "before.onnx", folder / "after.onnx"
    onnx.save(model, paths[0])
    given = {
        value.name: seeded_input(
            tuple(d.dim_value for d in value.type.tensor_type.shape.dim), "float32", i
        )
        for i, value in enumerate(model.graph.input)
    }
    names = [value.name for value in model.graph.output]
    found = form(FormGraph(model))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, paths[1])
    before, after = (run_reference(path, given, names) for path in paths)
    errors = [output_error("max", [after[name]], [before[name]]) for name in names]
    return found, [node.op_type for node in model.graph.node], max(errors)


@pytest.mark.parametrize(
    ("size", "pads"),
    [
        ((1, 24, 24), "[1, 1, 1, 1]"),  # 36 tiles of four, none over the edge
        ((1, 23, 26), "[1, 1, 1, 1]"),  # tiles that reach over it
        ((1, 26, 25), "[0, 0, 0, 0]"),
        ((1, 22, 24), "[2, 0, 1, 3]"),
        ((2, 13, 14), "[1, 1, 1, 1]"),  # of two images
        ((1, 14, 14), "[1, 1, 1, 1]"),  # 49 tiles of two
        ((3, 7, 8), "[1, 1, 1, 1]"),
    ],
)
def test_winograd_computes_what_the_convolution_computes(
    size: tuple[int, int, int], pads: str, tmp_path: Path
) -> None:
    batch, height, width = size
    model = _parsed(
        f"""g (float[{batch}, 64, {height}, {width}] x) => (float y) {{
            a = Conv <pads = {pads}> (x, w, b)  y = Relu(a)
        }}""",
        w=_weights(80, 64, 3, 3),
        b=_weights(80),
    )
    found, kinds, error = _converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and kinds.count("MatMul") == 4
    assert 0 < error < 2e-5


@pytest.mark.parametrize(
    ("attributes", "channels", "size"),
    [
        ("pads = [1, 1, 1, 1], strides = [2, 2]", 64, 48),
        ("pads = [2, 2, 2, 2], dilations = [2, 2]", 64, 24),
        ("pads = [1, 1, 1, 1], group = 2", 64, 24),  # 32 channels in a group
        ("pads = [1, 1, 1, 1]", 63, 24),
        ("pads = [1, 1, 1, 1]", 64, 10),  # 25 tiles of two
    ],
)
def test_winograd_leaves_other_convolutions(attributes: str, channels: int, size: int) -> None:
    groups = 2 if "group" in attributes else 1
    model = _parsed(
        f"g (float[1, {channels}, {size}, {size}] x) => (float y) {{ y = Conv <{attributes}> (x, w) }}",
        w=_weights(64, channels // groups, 3, 3),
    )
    assert to_winograd(FormGraph(model)) == 0
    assert [node.op_type for node in model.graph.node] == ["Conv"]


@pytest.mark.parametrize("batch", [1, 2])
def test_winograd_goes_with_groups(batch: int, tmp_path: Path) -> None:
    model = _parsed(
        f"""g (float[{batch}, 192, 22, 25] x) => (float y) {{
            a = Conv <pads = [1, 1, 1, 1], group = 3> (x, w, b)  y = Conv <group = 3> (a, v)
        }}""",
        w=_weights(240, 64, 3, 3),
        b=_weights(240),
        v=_weights(195, 80, 3, 3, seed=1),
    )
    found, kinds, error = _converted(model, to_winograd, tmp_path)
    assert found == 2 and "Conv" not in kinds and 0 < error < 2e-5


@pytest.mark.parametrize(
    ("kernel", "size", "pads", "products"),
    [
        ((3, 3, 3), (1, 16, 12, 14), "[1, 1, 1, 1, 1, 1]", 6),  # tiles of four all along
        ((3, 3, 3), (1, 4, 14, 14), "[1, 1, 1, 1, 1, 1]", 6),  # slices two by two
        ((3, 3, 3), (2, 7, 7, 7), "[0, 1, 2, 2, 1, 0]", 6),  # tiles of two, other edges, an odd depth
        ((1, 3, 3), (2, 5, 12, 13), "[0, 1, 1, 0, 1, 1]", 4),
        ((3, 1, 1), (1, 9, 5, 6), "[1, 0, 0, 1, 0, 0]", 4),
        ((3, 1, 1), (1, 2, 6, 6), "[2, 0, 0, 0, 0, 0]", 4),
    ],
)
def test_winograd_goes_along_three_axes(
    kernel: tuple[int, int, int],
    size: tuple[int, ...],
    pads: str,
    products: int,
    tmp_path: Path,
) -> None:
    batch, *places = size
    shape = ", ".join(map(str, (batch, 64, *places)))
    model = _parsed(
        f"""g (float[{shape}] x) => (float y) {{
            a = Conv <pads = {pads}> (x, w, b)  c = Mul(a, scale)  y = Relu(c)
        }}""",
        w=_weights(80, 64, *kernel),
        b=_weights(80),
        scale=_weights(1, 80, 1, 1, 1),
    )
    found, kinds, error = _converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and kinds.count("MatMul") == products
    assert 0 < error < 3e-5


def test_winograd_goes_with_groups_and_same_padding_along_three_axes(tmp_path: Path) -> None:
    model = _parsed(
        """g (float[1, 192, 6, 12, 10] x) => (float y) {
            a = Conv <auto_pad = "SAME_LOWER", group = 3> (x, w)  y = Conv <auto_pad = "VALID"> (a, v)
        }""",
        w=_weights(192, 64, 3, 3, 3),
        v=_weights(70, 192, 3, 3, 3, seed=1),
    )
    found, kinds, error = _converted(model, to_winograd, tmp_path)
    assert found == 2 and "Conv" not in kinds and 0 < error < 3e-5


@pytest.mark.parametrize(
    ("kernel", "attributes", "size"),
    [
        ((3, 3, 3), "strides = [2, 1, 1], pads = [1, 1, 1, 1, 1, 1]", (1, 8, 12, 12)),
        ((5, 3, 3), "pads = [2, 1, 1, 2, 1, 1]", (1, 8, 12, 12)),
        ((2, 3, 3), 'auto_pad = "SAME_UPPER"', (1, 8, 12, 12)),
        ((3, 3, 1), "pads = [1, 1, 0, 1, 1, 0]", (1, 8, 12, 12)),
        ((1, 3, 3), "pads = [0, 1, 1, 1, 1, 1]", (1, 8, 12, 12)),  # a slice of zeros more
        ((3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]", (1, 2, 7, 7)),  # 16 tiles of two
        ((1, 1, 1), "pads = [0, 0, 0, 0, 0, 0]", (1, 8, 12, 12)),
        ((3, 1, 1), "pads = [1, 0, 0, 1, 0, 0]", (2, 9, 5, 6)),  # of several volumes
    ],
)
def test_winograd_leaves_other_convolutions_of_volumes(
    kernel: tuple[int, int, int], attributes: str, size: tuple[int, ...]
) -> None:
    batch, *places = size
    shape = ", ".join(map(str, (batch, 64, *places)))
    model = _parsed(
        f"g (float[{shape}] x) => (float y) {{ y = Conv <{attributes}> (x, w) }}",
        w=_weights(64, 64, *kernel),
    )
    assert to_winograd(FormGraph(model)) == 0


def test_winograd_leaves_weights_that_are_computed_and_halves() -> None:
    text = "g (float[1, 64, 24, 24] x, float[64, 64, 3, 3] w) => (float y) { y = Conv(x, w) }"
    assert to_winograd(FormGraph(_parsed(text))) == 0
    text = "g (float16[1, 64, 24, 24] x) => (float16 y) { y = Conv(x, w) }"
    assert to_winograd(FormGraph(_parsed(text, w=_weights(64, 64, 3, 3).astype(np.float16)))) == 0


def test_winograd_stays_in_rows_between_convolutions_and_where_blocks_are_added(tmp_path: Path) -> None:
    """A residual block, and its result read in its own form by two others."""
    model = _parsed(
        """g (float[1, 64, 24, 24] x) => (float[1, 64, 24, 24] y, float[1, 64, 12, 12] z) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)   b = Mul(a, scale)   c = LeakyRelu(b)
            d = Conv <auto_pad = "SAME_UPPER"> (c, v, bias)   e = Add(d, x)   f = Clip(e, zero, six)
            y = Softmax <axis = 1> (f)   z = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)
        }""",
        w=_weights(64, 64, 3, 3),
        v=_weights(64, 64, 3, 3, seed=1),
        bias=_weights(64),
        scale=_weights(1, 64, 1, 1),
        zero=np.array(0, np.float32),
        six=np.array(6, np.float32),
    )
    found, kinds, error = _converted(model, to_winograd, tmp_path)
    assert found == 2 and error < 2e-5
    # One Transpose in, one out, and those of the weights.
    assert Counter(kinds)["Transpose"] == 4


def test_what_a_body_reads_is_there_in_its_own_form(tmp_path: Path) -> None:
    model = _parsed(
        """g (float[1, 64, 24, 24] x) => (float[1, 64, 24, 24] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            y = If(yes) <
                then_branch = t () => (float[1, 64, 24, 24] p) { p = Abs(a) },
                else_branch = e () => (float[1, 64, 24, 24] q) { q = Neg(a) }
            >
        }""",
        w=_weights(64, 64, 3, 3),
        yes=np.array(True),
    )
    found, _, error = _converted(model, to_winograd, tmp_path)
    assert found == 1 and error < 2e-5


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


def test_what_runs_along_one_axis_is_computed_as_an_image_of_one_row(tmp_path: Path) -> None:
    model = _parsed(
        _SERIES,
        w=_weights(8, 6, 3),
        b=np.abs(_weights(8)) + 0.5,
        one=np.ones(8, np.float32),
        slope=_weights(8, 1),
        pads=np.array([0, 0, 1, 0, 0, 2]),
        **{"from": np.array([1]), "to": np.array([21]), "axes": np.array([-1])},
        halves=np.array([4, 4]),
        per_channel=_weights(1, 4, 1),
        v=_weights(8, 2, 2),
        middle=np.array(0.25, np.float32),
        along=_weights(20),
    )
    found, kinds, error = _converted(model, to_two_d, tmp_path)
    assert found == 2 and error < 1e-6
    # In once; out for the two outputs.
    assert kinds.count("Reshape") == 3
    graph = FormGraph(model)
    ranks = {len(graph.shapes[n.output[0]]) for n in model.graph.node if n.op_type not in ("Reshape",)}
    assert ranks == {4}


def test_what_has_no_such_form_gets_its_own(tmp_path: Path) -> None:
    """A Transpose, a softmax, and a sum with a value of another rank."""
    model = _parsed(
        """g (float[2, 6, 40] x, float[1, 1, 1, 38] other) => (float[2, 38, 4] y, float[1, 2, 4, 38] z) {
            a = Conv(x, w)   b = Softmax <axis = -1> (a)   y = Transpose <perm = [0, 2, 1]> (b)   z = Add(a, other)
        }""",
        w=_weights(4, 6, 3),
    )
    found, _, error = _converted(model, to_two_d, tmp_path)
    assert found == 1 and error < 1e-6


def test_images_stay_as_they_are() -> None:
    text = "g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }"
    assert to_two_d(FormGraph(_parsed(text, w=_weights(4, 3, 3, 3)))) == 0


def group_norm(groups: int, shape: str, opset: int) -> onnx.ModelProto:
    return _parsed(
        f"""g (float[{shape}] x) => (float[{shape}] y) {{
            a = Reshape(x, grouped)   b = InstanceNormalization <epsilon = 0.01> (a, scale, bias)
            d = Reshape(b, own)   y = Mul(d, per_channel)
        }}""",
        opset,
        grouped=np.array([0, groups, -1]),
        own=np.array([int(size) for size in shape.split(",")]),
        scale=np.ones(groups, np.float32),
        bias=np.zeros(groups, np.float32),
        per_channel=_weights(1, 8, *[1] * (shape.count(",") - 1)),
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
    found, made, error = _converted(group_norm(groups, shape, opset), take_norms_apart, tmp_path)
    assert found == 1 and error < 1e-6
    assert kinds.items() <= Counter(made).items()
    assert ("InstanceNormalization" in made) == ("InstanceNormalization" in kinds)


@pytest.mark.parametrize("change", ["scale", "bias", "read twice", "other shape"])
def test_what_only_looks_like_a_group_norm_stays(change: str) -> None:
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
    assert take_norms_apart(FormGraph(model)) == 0


def test_biases_that_are_shared_become_each_ones_own(tmp_path: Path) -> None:
    model = _parsed(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 4, 4] y) {
            a = Conv(x, w, b)   c = Relu(a)   y = Conv(c, w, b)
        }""",
        w=_weights(4, 4, 3, 3),
        b=_weights(4),
    )
    found, _, error = _converted(model, part_biases, tmp_path)
    assert found == 1 and error == 0
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    assert convolutions[0].input[2] != convolutions[1].input[2]
    assert convolutions[0].input[1] == convolutions[1].input[1]
    assert part_biases(FormGraph(model)) == 0


def test_weights_beside_the_file_stay_there(tmp_path: Path) -> None:
    model = _parsed(
        "g (float[1, 8, 40] x) => (float[1, 16, 38] y) { y = Conv(x, w, b) }",
        w=_weights(16, 8, 3),
        b=_weights(16),
    )
    given = {"x": seeded_input((1, 8, 40), "float32", 1)}
    beside = tmp_path / "m.onnx"
    onnx.save(model, beside, save_as_external_data=True, location="m.weights", size_threshold=0)
    wanted = run_reference(beside, given, ["y"])["y"]
    proto = onnx.load(beside, load_external_data=False)
    assert to_two_d(FormGraph(proto)) == 1
    onnx.save(proto, beside)
    kept = {tuple(t.dims): t.data_location for t in proto.graph.initializer}
    assert kept[16, 8, 1, 3] == kept[16,] == onnx.TensorProto.EXTERNAL
    assert np.allclose(run_reference(beside, given, ["y"])["y"], wanted, atol=1e-6)

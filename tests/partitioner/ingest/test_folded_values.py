"""What is folded has the values that ONNX Runtime computes of the file as it was given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from collage.backends.numerics.reference import run_reference
from collage.model.reference import RUNTIME
from collage.partitioner.ingest.normalize import NormalizedInfo, normalize
from tests.fuzzing.check import difference
from tests.fuzzing.graphs import random_case, samples
from tests.shipped_models.test_ingest import saved

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
WEIGHTS = ", ".join(str(x) for x in np.cos(np.arange(24)))


def _assert_same(path: Path, folder: Path, inputs: dict[str, np.ndarray]) -> NormalizedInfo:
    """Normalize a file, and compare all outputs with those of the file itself."""
    info = normalize(path, folder / "n", {})
    names = ["y", "z"]
    wanted = run_reference(path, inputs, names)
    made = run_reference(info.path, inputs, names)
    for name in names:
        assert made[name].dtype == wanted[name].dtype
        np.testing.assert_allclose(made[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)
    return info


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_constants_flattens_as_its_opset_says(op: str, opset: int, tmp_path: Path) -> None:
    text = f"""
        m (float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z) <float[2, 3, 4] c = {{{WEIGHTS}}}> {{
            a = {op}<axis = 1>(c)  y = Add(x, a)
            b = {op}(c)  z = Add(x, b)
        }}
    """
    _assert_same(saved(text, tmp_path, opset), tmp_path, {"x": X})


@pytest.mark.parametrize(("sizes", "shape"), [("[2] k = {1, 1}", "2, 1"), (" k = {1}", "2")])
def test_split_of_given_sizes_keeps_its_axis(sizes: str, shape: str, tmp_path: Path) -> None:
    """ONNX Runtime ignores `keepdims` beside a list of sizes only."""
    text = f"""
        m (float[2, 3, 4] x) => (float[{shape}, 3, 4] y, int64 z) <int64{sizes}> {{
            s = SplitToSequence<axis = 0, keepdims = 0>(x, k)
            y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
            z = SequenceLength(s)
        }}
    """
    _assert_same(saved(text, tmp_path, 18), tmp_path, {"x": X})


LAYERS = {
    "BatchNormalization": "BatchNormalization(c, one, one, one, one)",
    "GlobalMaxPool": "GlobalMaxPool(c)",
    "MaxPool": 'MaxPool<kernel_shape = [3], strides = [2], auto_pad = "SAME_LOWER">(c)',
    "Resize": 'Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">(c, roi, scales)',
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_constants_are_those_of_onnxruntime(layer: str, tmp_path: Path) -> None:
    """ONNX computes other values of these."""
    text = f"""
        m (float[2, 3, 4] x) => (float[a, b, d] y, float[2, 3, 4] z)
        <float[2, 3, 4] c = {{{WEIGHTS}}}, float[3] one = {{1, 2, 3}}, float[3] scales = {{1, 1, 1}},
         float[6] roi = {{0, 0, 0.2, 1, 1, 0.8}}> {{
            y = {LAYERS[layer]}
            z = Add(x, c)
        }}
    """
    _assert_same(saved(text, tmp_path), tmp_path, {"x": X})


def test_split_by_a_computed_size_does_not_stop_folding(tmp_path: Path) -> None:
    text = """
        m (float[2, 3, 4] x, int64 k) => (float[2, 3, 4] y, float[2, 3, 4] z) <float one = {1}> {
            s = SplitToSequence<axis = 2>(x, k)
            y = ConcatFromSequence<axis = 2>(s)
            two = Add(one, one)  z = Mul(x, two)
        }
    """
    info = _assert_same(saved(text, tmp_path, 18), tmp_path, {"x": X, "k": np.array(3)})
    assert not any("folding stopped" in text for text in info.warnings)


@pytest.mark.parametrize("decided", [True, False])
def test_branch_may_give_a_value_twice(decided: bool, tmp_path: Path) -> None:
    """ONNX Runtime has other values of the first of them."""
    text = """
        m (float[4] x, bool c) => (float[4] y, float[4] z) {
            y, z = If(c) <then_branch = t () => (float[4] o, float[4] o) { o = Neg(x) }, else_branch = e () => (float[4] q, float[4] r) {
                q = Abs(x)  r = Sin(x)
            }>
        }
    """
    if decided:
        text = text.replace(", bool c)", ")").replace("z) {", "z) <bool c = {1}> {")
    info = normalize(saved(text, tmp_path), tmp_path / "n", {})
    given = {"x": X[0, 0], **({} if decided else {"c": np.array(True)})}
    made = run_reference(info.path, given, ["y", "z"])
    np.testing.assert_array_equal(made["y"], -X[0, 0])
    np.testing.assert_array_equal(made["z"], -X[0, 0])


def test_decided_branch_may_give_a_weight(tmp_path: Path) -> None:
    text = """
        m (float[4] x) => (float[4] y, float[4] z) <bool c = {1}> {
            y, z = If(c) <
                then_branch = t () => (float[4] w, float[4] a) <float[4] w = {1, 2, 3, 4}> { a = Sin(x) },
                else_branch = e () => (float[4] q, float[4] r) { q = Abs(x)  r = Sin(x) }
            >
        }
    """
    _assert_same(saved(text, tmp_path), tmp_path, {"x": X[0, 0]})


@pytest.mark.parametrize("rows", [2, 8])
def test_difference_of_sizes_may_be_negative(rows: int, tmp_path: Path) -> None:
    text = """
        m (float[n] x) => (int64[1] y) <int64[1] less = {-5}> {
            s = Shape(x)
            d = Add(s, less)
            y = Abs(d)
        }
    """
    info = normalize(saved(text, tmp_path), tmp_path / "n", {}, kept=("n",))
    made = run_reference(info.path, {"x": np.zeros(rows, np.float32)}, ["y"])
    assert made["y"].tolist() == [abs(rows - 5)]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_random_graphs_of_constants_keep_their_values(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        path, names = _of_constants(seed, folder)
        wanted = run_reference(path, {}, names)
        made = run_reference(normalize(path, folder / "n", {}, 0, RUNTIME).path, {}, names)
        wrong = {
            name: difference(made[name], array)
            for name, array in wanted.items()
            if array.dtype.kind != "f" or np.isfinite(array).all()
        }
        assert not any(wrong.values()), (seed, wrong)


def _of_constants(seed: int, folder: Path) -> tuple[Path, list[str]]:
    """A random model whose inputs are weights, and its outputs."""
    case = random_case(seed)
    proto = onnx.load_from_string(case.model)
    weights = {tensor.name for tensor in proto.graph.initializer}
    declared = {
        value.name: (
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
            tuple(
                d.dim_value if d.HasField("dim_value") else case.sizes[0]
                for d in value.type.tensor_type.shape.dim
            ),
        )
        for value in proto.graph.input
        if value.name not in weights
    }
    given = samples(declared, seed)
    del proto.graph.input[:]
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in given.items())
    proto.ir_version = max(4, proto.ir_version)
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx", [value.name for value in proto.graph.output]

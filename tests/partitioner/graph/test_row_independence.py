"""Rows are independent where, and only where, more of them change no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.model.reference import RUNTIME
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.row_independence import Rows, RowsMixError, rows_of_outputs
from collage.partitioner.ingest.binding import bind_sizes
from collage.partitioner.ingest.normalize import normalize

_W = "float[4,4] w = {1,2,3,4, 2,3,4,5, 1,1,2,2, 0,1,0,1}, int64[0] none = {}, int64[1] two = {2}"

APART = {
    "elementwise": "h = Relu(x) y = Add(h, x)",
    "bias": "b = ReduceMean<axes=[-1],keepdims=0>(w) y = Add(x, b)",
    "product": "y = MatMul(x, w)",
    "products of rows": "t = Transpose<perm=[0,2,1]>(x) y = MatMul(x, t)",
    "flattened": (
        "s = Shape(x) minus = Constant<value_ints=[-1,4]>() f = Reshape(x, minus) p = MatMul(f, w) y = Reshape(p, s)"
    ),
    "softmax": "y = Softmax<axis=-1>(x)",
    "moved": "t = Transpose<perm=[1,0,2]>(x) r = Softmax<axis=0>(t) y = Relu(r)",
    "mean": "y = ReduceMean<axes=[1],keepdims=0>(x)",
    "halves": "a, b = Split<axis=2>(x) y = Concat<axis=1>(a, b)",
    "expanded": "s = Shape(x) o = Constant<value_floats=[2.0]>() e = Expand(o, s) y = Mul(x, e)",
    "rows wide": (
        "s = Shape(x) z = Constant<value_ints=[0]>() n = Gather(s, z) more = Constant<value_ints=[3,8]>() "
        "m = ReduceMean<axes=[2],keepdims=1>(x) t = Concat<axis=0>(n, more) y = Expand(m, t)"
    ),
    "position": (
        "s = Shape(x) one = Constant<value_ints=[1]>() l = Gather(s, one) z = Constant<value_ints=[0]>() "
        "p = Slice(w, z, l, z) y = Add(x, p)"
    ),
    "unsqueezed": "one = Constant<value_ints=[1]>() u = Unsqueeze(x, one) y = Relu(u)",
}
MIXED = {
    "softmax over rows": "y = Softmax<axis=0>(x)",
    "mean over rows": "y = ReduceMean<axes=[0],keepdims=1>(x)",
    "all": "y = ReduceMax<keepdims=0>(x)",
    "all by an empty list": "y = ReduceSum<keepdims=0>(x, none)",
    "sum over rows": "t = Transpose<perm=[1,2,0]>(x) u = Transpose<perm=[1,0,2]>(x) y = MatMul(t, u)",
    "flipped": (
        "a = Constant<value_ints=[-1]>() b = Constant<value_ints=[-9]>() c = Constant<value_ints=[0]>() "
        "y = Slice(x, a, b, c, a)"
    ),
    "shared with length": "minus = Constant<value_ints=[4,-1]>() y = Reshape(x, minus)",
    "number of rows as data": (
        "s = Shape(x) z = Constant<value_ints=[0]>() n = Gather(s, z) f = Cast<to=1>(n) y = Div(x, f)"
    ),
    "told": "s = Shape(x) y = Cast<to=1>(s)",
    "as wide as rows": (
        "s = Shape(x) z = Constant<value_ints=[0]>() n = Gather(s, z) three = Constant<value_ints=[3]>() "
        "m = ReduceMean<axes=[2],keepdims=1>(x) t = Concat<axis=0>(n, three, n) e = Expand(m, t) "
        "y = ReduceSum<keepdims=1>(e, two)"
    ),
    "cumulated": "z = Constant<value_int=0>() y = CumSum(x, z)",
    "joined": "y = Concat<axis=0>(x, x)",
}


def _model(body: str, folder: Path) -> Path:
    header = '<ir_version: 9, opset_import: ["" : 17]>'
    proto = onnx.parser.parse_model(f"{header} g (float[N,3,4] x) => (float y) <{_W}> {{ {body} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, folder / "source.onnx")
    return normalize(folder / "source.onnx", folder / "free", {}, 0, RUNTIME, ["N"]).path


def _rows(path: Path, folder: Path, count: int) -> dict[str, Rows]:
    bound = Model.open(bind_sizes(path, folder / f"at-{count}", {"N": count}, RUNTIME).path)
    return rows_of_outputs(bound.index, {"x": 0}, count)


def _run(path: Path, x: np.ndarray) -> np.ndarray:
    (made,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    return np.asarray(made)


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_rows_apart_are_proven_and_are_so(body: str, tmp_path: Path) -> None:
    path = _model(body, tmp_path)
    found = _rows(path, tmp_path, 5)["y"]
    assert _rows(path, tmp_path, 2)["y"] == found
    x = np.random.default_rng(0).standard_normal((7, 3, 4)).astype(np.float32)
    for count in (1, 3, 6):
        part = _run(path, x).take(range(count * found.group), found.axis)
        np.testing.assert_allclose(part, _run(path, x[:count]), rtol=1e-5)


@pytest.mark.parametrize("body", MIXED.values(), ids=MIXED)
def test_what_mixes_rows_is_refused(body: str, tmp_path: Path) -> None:
    path = _model(body, tmp_path)
    with pytest.raises(RowsMixError):
        _rows(path, tmp_path, 5)


def _node(op: str, shapes: Sequence[Sequence[int | str]], **attributes: object) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape))
        for name, shape in zip(names, shapes, strict=True)
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, ["y"], "n", **attributes)], "g", inputs, [output]
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10
    )


@pytest.mark.parametrize(
    ("shapes", "axes", "is_apart"),
    [
        ([["N", 2, 3], ["N", 3, 2]], {"x0": 0, "x1": 0}, True),
        ([["N", 3], [3, 2]], {"x0": 0}, True),
        ([["N", 3], [3]], {"x0": 0}, True),
        ([[4, 2, 3], [4, 3, "N"]], {"x1": 2}, False),
        ([[2, "N"], ["N", 3]], {"x0": 1, "x1": 0}, False),
        ([["N", 2, 3], [3, "N"]], {"x0": 0, "x1": 1}, False),
        ([[2, 3], ["N", 3, 2]], {"x1": 0}, True),
    ],
)
def test_products(
    shapes: list[list[int | str]], axes: dict[str, int], is_apart: bool, tmp_path: Path
) -> None:
    onnx.save(_node("MatMul", shapes), tmp_path / "source.onnx")
    path = normalize(tmp_path / "source.onnx", tmp_path / "free", {}, 0, RUNTIME, ["N"]).path
    bound = Model.open(bind_sizes(path, tmp_path / "at", {"N": 5}, RUNTIME).path)
    try:
        found = rows_of_outputs(bound.index, axes, 5)
    except RowsMixError:
        assert not is_apart
        return
    assert is_apart and found["y"].group == 1

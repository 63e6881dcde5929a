"""Normalizing: real models keep their meaning, and have the normal form."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests import models
from tests.partitioner.running import assert_equal, feed_for, run


def _write(path: Path, text: str, **weights: np.ndarray) -> Path:
    """A model from ONNX's text form; a graph alone is of opset 21. Weights are inputs of the text."""
    head = "" if text.lstrip().startswith("<") else '<ir_version: 9, opset_import: ["" : 21]>'
    proto = onnx.parser.parse_model(head + text)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, path)
    return path


def _normalized(
    tmp_path: Path, text: str, dims: dict[str, int] | None = None, **weights: np.ndarray
) -> Model:
    source = _write(tmp_path / "source.onnx", text, **weights)
    return Model.open(normalize(source, tmp_path / "out", dims or {}).path)


def _ops(model: Model) -> list[str]:
    return [node.op for node in model.index.nodes]


@pytest.mark.slow
@pytest.mark.parametrize("name", models.all_small())
def test_small_real_models_keep_their_meaning(name: str, normalized: Callable[[str], Model]) -> None:
    _check_real_model(name, normalized(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in models.MODELS if n not in models.all_small()])
def test_real_models_keep_their_meaning(name: str, normalized: Callable[[str], Model]) -> None:
    _check_real_model(name, normalized(name))


def _check_real_model(name: str, model: Model) -> None:
    onnx.checker.check_model(str(model.path))
    assert 10 <= model.ir.ir_version <= 13 and 7 <= model.ir.opset_imports[""] <= 26
    assert "Constant" not in _ops(model) and "ConstantOfShape" not in _ops(model)
    assert not set(model.ir.graph.initializers) & set(model.index.inputs)
    if name != "silero_if":
        assert all(
            model.index.values[n].is_static for node in model.index.nodes for n in node.outputs if n
        )
    feed = feed_for((model.index.values[n] for n in model.index.inputs), name)
    bound = {n: np.array(v) for n, v in models.default_dims(name).items() if n == "sr"}
    assert_equal(run(model.path, feed), run(models.model_path(name), {**feed, **bound}))


@pytest.mark.slow
def test_normalize_is_deterministic_and_its_description_pickles(tmp_path: Path) -> None:
    source = models.model_path("silero_16k")
    infos = [normalize(source, tmp_path / d, {"batch": 1, "sequence": 576}) for d in ("a", "b")]
    first, second = (info.path.read_bytes() for info in infos)
    assert first == second
    again = pickle.loads(pickle.dumps(infos[0]))
    model = Model.open(again.path)
    assert again == infos[0] and model.sha256 == Model.open(infos[1].path).sha256
    assert list(model.index.outputs) == ["output", "stateN"]
    assert [spec.shape for spec in again.inputs][:1] == [(1, 576)]
    assert dict(model.ir.opset_imports) == {"": 15}


@pytest.mark.slow
def test_a_normalized_model_normalizes_to_itself(tmp_path: Path) -> None:
    dims = {"batch": 1, "sequence": 576}
    once = normalize(models.model_path("silero_16k"), tmp_path / "a", dims)
    twice = normalize(once.path, tmp_path / "b", {})
    assert Model.open(once.path).sha256 == Model.open(twice.path).sha256


def test_opening_reads_no_weights(normalized: Callable[[str], Model]) -> None:
    model = normalized("light_squeezenet")
    data = [v.const_value for v in model.ir.graph.initializers.values()]
    assert model.index.constants and all(tensor is not None for tensor in data)
    assert Model.open(model.path).sha256 == model.sha256


def test_nameless_and_twice_named_nodes_get_new_names(tmp_path: Path) -> None:
    """Others keep theirs."""
    source = _write(
        tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { a = Relu(x) b = Abs(a) y = Neg(b) }"
    )
    proto = onnx.load(source)
    for node, name in zip(proto.graph.node, ["twin", "twin", ""], strict=True):
        node.name = name
    onnx.save(proto, source)
    names = [node.name for node in Model.open(normalize(source, tmp_path / "o", {}).path).index.nodes]
    assert names[0] == "twin" and len(set(names)) == 3 and all(names) and "Neg" in names[2]


def test_functions_are_inlined(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """<ir_version: 9, opset_import: ["" : 21, "mine" : 1]>
        g (float[2] x) => (float[2] y) { h = mine.twice(x) y = mine.twice(h) }
        <domain: "mine", opset_import: ["" : 21]> twice (a) => (b) { c = Abs(a) b = Add(c, c) }""",
    )
    assert _ops(model) == ["Abs", "Add", "Abs", "Add"]
    assert list(model.ir.opset_imports) == [""]


def test_constants_become_initializers_and_are_folded_once(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """g (float[2, 3] x) => (float[N] y) {
            two = Constant<value_float: float = 2.0>()  one = Constant<value = float[3] {1, 1, 1}>()
            three = Add(two, one)  shape = Shape(x)  n = ReduceProd<keepdims = 1>(shape)
            unused = Exp(x)  scaled = Mul(x, three)  same = Identity(scaled)  y = Reshape(same, n)
        }""",
    )
    assert _ops(model) == ["Mul", "Reshape"]
    assert model.index.values["y"].shape == (6,)
    assert len(model.index.constants) == 2


def test_messages_of_constant_folding_are_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the infinities of the model's own constants nor nodes that the library leaves as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = _normalized(
            tmp_path,
            """g (float[2] x, float[2] c) => (float[2] y) {
                zero, one = Split <num_outputs = 2> (c)  none = Log(zero)  part = Sub(one, none)  y = Add(x, part)
            }""",
            c=np.array([0, 1], np.float32),
        )
    assert not caplog.records
    feed = {"x": np.ones(2, np.float32)}
    assert np.isposinf(run(model.path, feed)["y"]).all()


def test_constant_fills_become_weights(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """g (float[1, 512] x) => (float[1, 512] y) {
            shape = Constant<value = int64[2] {512, 512}>()
            w = ConstantOfShape<value = float[1] {0.5}>(shape)  y = MatMul(x, w)
        }""",
    )
    assert _ops(model) == ["MatMul"] and model.index.values["w"].shape == (512, 512)


def test_shapes_are_known_behind_microsoft_operators(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """<ir_version: 9, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[2, 3] x, float[3] b) => (float[N, M] y) {
            h = com.microsoft.Gelu(x)  i = com.microsoft.BiasGelu(h, b)  y = Neg(i)
        }""",
    )
    assert [model.index.values[name].shape for name in ("h", "i", "y")] == [(2, 3)] * 3
    assert model.index.values["i"].dtype == "float32"


def test_initializers_that_are_also_inputs_become_plain(tmp_path: Path) -> None:
    text = "g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }"
    model = _normalized(tmp_path, text, w=np.ones(2, np.float32))
    assert model.index.inputs == ("x",) and model.index.constants == {"w"}


def test_outputs_that_no_node_computes_are_made_by_an_identity(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """g (float[2] x) => (float[2] y, float[2] c, float[2] r, float[2] s) {
            c = Constant<value = float[2] {1, 2}>()  y = Identity(x)  r = Relu(x)  s = Identity(r)
        }""",
    )
    assert set(model.index.producer) >= {"y", "c", "r", "s"}
    assert model.index.outputs == ("y", "c", "r", "s")
    out = run(model.path, {"x": np.array([-1, 2], np.float32)})
    assert [out[n].tolist() for n in "ycrs"] == [[-1, 2], [1, 2], [0, 2], [0, 2]]


def test_values_read_by_a_removed_branch_alone_are_removed(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """g (float[2] x) => (float[2] y) {
            never = Constant<value = bool {0}>()  a = Exp(x)  w = Constant<value = float[2] {3, 4}>()
            z = If(never) <
                then_branch = a () => (float[2] t) { t = Add(a, w) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
            y = Relu(z)
        }""",
    )
    assert _ops(model) == ["Neg", "Relu"] and not model.index.constants


def test_folding_writes_no_operator_of_a_later_opset(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """<ir_version: 7, opset_import: ["" : 12]>
        g (float[2, 3] x, float[2, 3] y) => (float[2, 2, 3] z) {
            both = SequenceConstruct(x, y)
            z = ConcatFromSequence<axis = 0, new_axis = 1>(both)
        }""",
    )
    feed = {"x": np.zeros((2, 3), np.float32), "y": np.ones((2, 3), np.float32)}
    assert run(model.path, feed)["z"].tolist() == np.stack([feed["x"], feed["y"]]).tolist()


def test_values_captured_by_bodies_stay_in_the_main_graph(tmp_path: Path) -> None:
    model = _normalized(
        tmp_path,
        """g (bool cond, float[2] x) => (float[2] y) {
            w = Constant<value = float[2] {3, 4}>()
            y = If(cond) <
                then_branch = a () => (float[2] t) { t = Add(x, w) },
                else_branch = b () => (float[2] e) {
                    k = Constant<value = float[2] {5, 6}>()  e = Mul(x, k)
                }
            >
        }""",
    )
    (node,) = model.index.nodes
    assert set(node.captured) == {"x", *model.index.constants} and len(model.index.constants) == 2
    for cond, expected in [(True, [4, 5]), (False, [5, 6])]:
        out = run(model.path, {"cond": np.array(cond), "x": np.ones(2, np.float32)})
        assert out["y"].tolist() == expected


class TestVersions:
    def test_the_newest_defaults_of_onnx_are_lowered(self, tmp_path: Path) -> None:
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [value("x", 1, [2])],
            [value("y", 1, [2])],
        )
        onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
        info = normalize(tmp_path / "m.onnx", tmp_path / "o", {})
        model = Model.open(info.path).ir
        assert model.ir_version <= 13 and model.opset_imports[""] <= 26
        assert run(info.path, {"x": np.array([-1, 1], np.float32)})["y"].tolist() == [0, 1]

    def test_operators_that_changed_since_are_converted(self, tmp_path: Path) -> None:
        model = _normalized(
            tmp_path,
            """<ir_version: 13, opset_import: ["" : 28]>
            g (float[1, 400] x, float[400, 1] w) => (float[1, 1] y) {
                c = Cast<to = 11>(x)  two = Constant<value = double[1] {2.0}>()  d = Mul(c, two)
                e = Cast<to = 1>(d)  y = MatMul(e, w)
            }""",
            w=np.full((400, 1), 0.5, np.float32),
        )
        assert model.ir.opset_imports[""] == 26 and _ops(model) == ["Cast", "Mul", "Cast", "MatMul"]
        assert run(model.path, {"x": np.ones((1, 400), np.float32)})["y"].tolist() == [[400]]

    def test_an_operator_that_did_not_exist_is_named(self, tmp_path: Path) -> None:
        text = """<ir_version: 13, opset_import: ["" : 28]>
            g (float[2, 4] x) => (float[2, 4] y) { y = SwiGLU(x, x) }"""
        with pytest.raises(ModelError, match=r"opset 28 to 26 .*SwiGLU"):
            normalize(_write(tmp_path / "m.onnx", text), tmp_path / "o", {})

    @pytest.mark.parametrize("least_opset", [0, 13])
    def test_sizes_that_are_minus_one_are_unknown(self, least_opset: int, tmp_path: Path) -> None:
        """As Paddle's exporter writes them; onnx's converter keeps them inside and makes 0 of them at outputs."""
        text = """<ir_version: 6, opset_import: ["" : 11]>
            g (float[1, 4, 8] x) => (float[1, 8] y) { r = Relu(x)  y = ReduceSum<axes: ints = [1], keepdims: int = 0>(r) }"""
        proto = onnx.load(_write(tmp_path / "m.onnx", text))
        known = onnx.shape_inference.infer_shapes(proto)
        for value in (*known.graph.input, *known.graph.output, *known.graph.value_info):
            value.type.tensor_type.shape.dim[0].dim_value = -1
        onnx.save(known, tmp_path / "m.onnx")
        info = normalize(tmp_path / "m.onnx", tmp_path / "o", {"x:0": 2}, least_opset=least_opset)
        model = Model.open(info.path)
        assert model.ir.opset_imports[""] == max(11, least_opset)
        values = model.index.values
        assert {n: v.shape for n, v in values.items() if v.dtype == "float32"} == {
            **{"x": (2, 4, 8), "r": (2, 4, 8)},
            "y": (2, 8),
        }

    def test_an_old_opset_is_left_alone_with_a_warning(self, tmp_path: Path) -> None:
        text = (
            """<ir_version: 3, opset_import: ["" : 6]> g (float[2] x) => (float[2] y) { y = Relu(x) }"""
        )
        info = normalize(_write(tmp_path / "m.onnx", text), tmp_path / "o", {})
        assert dict(Model.open(info.path).ir.opset_imports) == {"": 6}
        assert "opset 6 is older" in info.warnings[0]
        assert run(info.path, {"x": np.array([-1, 1], np.float32)})["y"].tolist() == [0, 1]

    def test_an_unknown_opset_is_refused(self, tmp_path: Path) -> None:
        source = _write(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { y = Relu(x) }")
        proto = onnx.load(source)
        proto.opset_import[0].version = 99
        onnx.save(proto, source)
        with pytest.raises(ModelError, match="99"):
            normalize(source, tmp_path / "o", {})


class TestDimensions:
    TEXT = "g (float[N, 3, M] x, float[N] z) => (float[N, 3, M] y) { y = Mul(x, x) }"

    def test_names_bind_everywhere(self, tmp_path: Path) -> None:
        model = _normalized(tmp_path, self.TEXT, {"N": 2, "M": 5})
        assert model.index.values["y"].shape == (2, 3, 5) and model.index.values["z"].shape == (2,)

    def test_places_go_before_names(self, tmp_path: Path) -> None:
        source = _write(tmp_path / "m.onnx", self.TEXT)
        info = normalize(source, tmp_path / "o", {"N": 2, "M": 5, "x:0": 4})
        assert [spec.shape for spec in info.inputs] == [(4, 3, 5), (2,)]

    @pytest.mark.parametrize(
        ("dims", "message"),
        [
            ({}, r"x:0 \(N\), x:2 \(M\), z:0 \(N\); .*--dim N=1 --dim M=1"),
            ({"N": 1}, r"free input dimensions: x:2 \(M\);"),
            ({"N": 1, "M": 1, "batch": 1}, "no dimension batch; there are N, M"),
            ({"N": -1, "M": 1}, "N=-1 must be a whole number that is not negative"),
            ({"N": 1, "M": 1, "x:1": 4}, "x:1 is fixed at 3"),
        ],
    )
    def test_errors_say_what_to_bind(self, tmp_path: Path, dims: dict[str, int], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            normalize(_write(tmp_path / "m.onnx", self.TEXT), tmp_path / "o", dims)

    def test_nameless_dimensions_are_bound_by_place(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="--dim input:0=1 --dim input:1=1 --dim state:1=1"):
            normalize(models.model_path("silero"), tmp_path, {})

    @pytest.mark.slow
    def test_scalar_integer_input_becomes_a_constant_that_picks_a_branch(
        self, normalized: Callable[[str], Model]
    ) -> None:
        assert normalized("silero_if").index.inputs == ("input", "state", "sr")
        bound = normalized("silero")
        assert bound.index.inputs == ("input", "state") and "If" not in _ops(bound)
        assert isinstance(bound.ir, ir.Model) and len(bound.nodes) > 30

    @pytest.mark.slow
    def test_a_branch_that_a_scalar_decides_is_pointed_out(self, tmp_path: Path) -> None:
        info = normalize(models.model_path("silero"), tmp_path, models.default_dims("silero_if"))
        assert "'If_0' is opaque: decide its condition with --dim sr=VALUE" in info.warnings[0]
        assert (
            normalize(models.model_path("silero"), tmp_path, models.default_dims("silero")).warnings
            == ()
        )

    def test_a_scalar_out_of_range_is_refused(self, tmp_path: Path) -> None:
        text = "g (int32 n, float[2] x) => (float[2] y) { f = Cast<to = 1>(n) y = Mul(x, f) }"
        with pytest.raises(ModelError, match="n=4294967296 must be a whole number that fits INT32"):
            normalize(_write(tmp_path / "m.onnx", text), tmp_path / "o", {"n": 1 << 32})

"""Ingest takes what ONNX Runtime takes, and refuses the rest with the reason and the remedy."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from collage.backends.sandbox.run import ChildFailed, run_in_child
from collage.model import reference
from collage.model.reference import Reference, ingest
from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.repairs.repair import RUNTIME_OPERATORS


def saved(text: str, folder: Path, opset: int = 17) -> Path:
    """The model of a text as a file; nothing of it is checked."""
    domains = f'"" : {opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3'
    onnx.save(
        onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> {text}"), folder / "m.onnx"
    )
    return folder / "m.onnx"


def test_unsorted_nodes_are_sorted_in_bodies_too(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[4] x, bool c) => (float[4] y) {
            y = Neg(b)
            b = If(c) <
                then_branch = t () => (float[4] o) { o = Relu(k)  k = Abs(a) },
                else_branch = e () => (float[4] p) { p = Identity(a) }
            >
            a = Tanh(x)
        }
        """,
        tmp_path,
    )
    model, info = ingest(path, tmp_path)
    assert [node.op_type for node in model.index.nodes] == ["Tanh", "If", "Neg"]
    values = {"x": np.array([-1, 0, 1, 2], np.float32), "c": np.array(True)}
    (found,) = Reference(model, [values], tmp_path / "r").values(["y"])
    np.testing.assert_allclose(found["y"], -np.abs(np.tanh(values["x"])), rtol=1e-6)
    assert [spec.name for spec in info.inputs] == ["x", "c"]


def test_a_name_may_be_given_again_after_a_body_has_used_it(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[4] x, bool c) => (float[4] y) {
            b = If(c) <
                then_branch = h () => (float[4] o) { t = Exp(x)  o = Neg(t) },
                else_branch = e () => (float[4] p) { p = Identity(x) }
            >
            t = Abs(b)
            y = Sqrt(t)
        }
        """,
        tmp_path,
    )
    model, _ = ingest(path, tmp_path)
    values = {"x": np.array([-1, 0, 1, 2], np.float32), "c": np.array(True)}
    (found,) = Reference(model, [values], tmp_path / "r").values(["y"])
    np.testing.assert_allclose(found["y"], np.exp(values["x"] / 2), rtol=1e-6)


def test_cycle_is_refused_with_the_node(tmp_path: Path) -> None:
    path = saved(
        "m (float[4] x) => (float[4] y) { [n] a = Add(x, b)  b = Relu(a)  y = Neg(b) }", tmp_path
    )
    with pytest.raises(ModelError, match="is part of a cycle"):
        ingest(path, tmp_path)


def test_operators_of_onnxruntime_in_onnx_domain_pass_the_checker(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[2, 8] x) => (float[2, 8] y) <float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}> {
            n = SimplifiedLayerNormalization<axis = -1, epsilon = 1e-5>(x, w)
            y = Relu(n)
        }
        """,
        tmp_path,
    )
    model, _ = ingest(path, tmp_path)
    assert (model.index.values["n"].dtype, model.index.values["n"].shape) == ("float32", (2, 8))


def test_listed_operators_are_those_that_onnxruntime_registers() -> None:
    """An upgrade of ONNX Runtime that registers more of them fails here."""
    known: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            known[schema.name] = min(schema.since_version, known.get(schema.name, 99))
    registered = {
        schema.name
        for schema in ort_state.get_all_operator_schema()
        if not schema.domain and schema.since_version < known.get(schema.name, 99)
    }
    compiled = {name for name in registered if name.endswith("_TRT")}
    assert registered - compiled - {"MemcpyFromHost", "MemcpyToHost"} == RUNTIME_OPERATORS


def test_types_that_onnx_cannot_infer_are_asked_of_the_runtime(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[1, 4, 8] x) => (float[1, 4, 8] y)
        <float[8, 24] w = {0}, float[24] b = {0}> {
            a = com.microsoft.Attention<num_heads = 2>(x, w, b)
            y = Relu(a)
        }
        """.replace("{0}", "{" + ", ".join(["0.5"] * 192) + "}", 1).replace(
            "{0}", "{" + ", ".join(["0.0"] * 24) + "}"
        ),
        tmp_path,
    )
    model, _ = ingest(path, tmp_path)
    assert (model.index.values["a"].dtype, model.index.values["a"].shape) == ("float32", (1, 4, 8))


def test_input_that_is_an_output_too_keeps_its_name(tmp_path: Path) -> None:
    model, _ = ingest(
        saved("m (float[4] x) => (float[4] y, float[4] x) { y = Relu(x) }", tmp_path), tmp_path
    )
    assert model.index.outputs == ("y", "x")
    sample = {"x": np.array([-1, 0, 1, 2], np.float32)}
    (found,) = Reference(model, [sample], tmp_path / "r").values(["y", "x"])
    np.testing.assert_array_equal(found["x"], sample["x"])


def test_sequences_at_old_opsets_keep_their_operators(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[1, 6] x) => (float[1, 6] y) <int64 two = {2}> {
            s = SplitToSequence<axis = 1>(x, two)
            y = ConcatFromSequence<axis = 1>(s)
        }
        """,
        tmp_path,
    )
    model, _ = ingest(path, tmp_path)
    assert model.index.values["s"].dtype == "unknown"
    assert [node.op_type for node in model.index.nodes] == ["SplitToSequence", "ConcatFromSequence"]


def test_output_without_a_shape_gets_the_inferred_one(tmp_path: Path) -> None:
    path = saved(
        "m (float[1, 6, 4] b, float[1, 1, 6] s) => (int64[] o) { o = NonMaxSuppression(b, s) }",
        tmp_path,
        11,
    )
    proto = onnx.load(path)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, path)
    model, _ = ingest(path, tmp_path)
    assert model.index.values["o"].shape == (None, 3)


def test_unknown_rank_is_not_taken_for_a_scalar(tmp_path: Path) -> None:
    """ONNX Runtime says `[]` of both."""
    path = saved(
        """
        m (float[5, 2] x) => (float[n, 2] y) {
            s = ai.onnx.ml.Scaler<offset = [1.0, 1.0], scale = [2.0, 2.0]>(x)
            y = ai.onnx.ml.Normalizer<norm = "L2">(s)
        }
        """,
        tmp_path,
    )
    model, info = ingest(path, tmp_path)
    assert (model.index.values["s"].dtype, model.index.values["s"].shape) == ("float32", None)
    assert not any("contradict" in text for text in info.warnings)


def test_maps_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[1, 2] x) => (seq(map(int64, float)) y) {
            y = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(x)
        }
        """,
        tmp_path,
    )
    with pytest.raises(ModelError, match=r"'y' is not a tensor but a sequence of maps.*zipmap=False"):
        ingest(path, tmp_path)


def test_hint_for_odd_names_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    proto = onnx.load(saved("m (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }", tmp_path))
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "in put:0"
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N,1"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N,1"
    onnx.save(proto, tmp_path / "odd.onnx")
    with pytest.raises(ModelError) as refused:
        ingest(tmp_path / "odd.onnx", tmp_path)
    flag, value = shlex.split(str(refused.value).rpartition("example ")[2])
    assert flag == "--dim"
    name, _, size = value.rpartition("=")
    model, _ = ingest(tmp_path / "odd.onnx", tmp_path / "again", {name: int(size)})
    assert model.index.values["in put:0"].shape == (1, 3)


def test_hint_for_a_branch_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[4] x, int64 k) => (float[4] y) <int64 two = {2}> {
            c = Equal(k, two)
            y = If(c) <then_branch = t () => (float[4] o) { o = Exp(x) }, else_branch = e () => (float[4] p) { p = Neg(x) }>
        }
        """,
        tmp_path,
    )
    proto = onnx.load(path)
    proto.graph.input[1].name = proto.graph.node[0].input[0] = "sample rate"
    onnx.save(proto, path)
    _, info = ingest(path, tmp_path)
    (told,) = [text for text in info.warnings if "is opaque" in text]
    assert shlex.split(told.partition("with ")[2])[:2] == ["--dim", "sample rate=VALUE"]


def test_random_numbers_are_refused_at_once_with_the_node(tmp_path: Path) -> None:
    path = saved(
        "m (float[4] x) => (float[4] y) { [nz] n = RandomNormalLike(x)  y = Add(x, n) }", tmp_path
    )
    model, _ = ingest(path, tmp_path)
    sample = {"x": np.zeros(4, np.float32)}
    with pytest.raises(ModelError, match=r"'nz' \(RandomNormalLike\) draws random numbers.*--inputs"):
        Reference(model, [sample], tmp_path / "r").values(["y"])


def test_noise_that_is_switched_off_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = saved(
        "m (float[4] x, float s) => (float[4] y) { n = RandomNormalLike(x)  k = Mul(n, s)  y = Add(x, k) }",
        tmp_path,
    )
    model, _ = ingest(path, tmp_path)
    sample = {"x": np.ones(4, np.float32), "s": np.zeros((), np.float32)}
    (found,) = Reference(model, [sample], tmp_path / "r").values(["y"])
    np.testing.assert_array_equal(found["y"], sample["x"])


@pytest.mark.slow
def test_values_that_do_not_fit_together_are_computed_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What values of unknown shape take is known only after the run."""
    model, _ = ingest(
        saved("m (float[4] x) => (float[4] y) { a = Relu(x)  b = Exp(a)  y = Neg(b) }", tmp_path),
        tmp_path,
    )
    asked: list[int] = []

    def small_only(function: Callable[..., object], *given: Any, **settings: Any) -> object:
        asked.append(len(given[2]))
        if asked[-1] > 1:
            raise ChildFailed("out_of_memory", "killed by the kernel for lack of memory")
        return run_in_child(function, *given, **settings)

    monkeypatch.setattr(reference, "run_in_child", small_only)
    values = Reference(model, [{"x": np.zeros(4, np.float32)}], tmp_path / "r")
    np.testing.assert_array_equal(values.values(["y"])[0]["y"], [-1, -1, -1, -1])
    np.testing.assert_array_equal(values.values(["b"])[0]["b"], [1, 1, 1, 1])
    assert asked == [3, 1, 1]
    with pytest.raises(ModelError, match="lack of memory"):
        other = Reference(model, [{"x": np.zeros(4, np.float32)}], tmp_path / "s")
        other.values(["a", "y"], last=True)

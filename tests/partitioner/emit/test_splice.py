"""Splicing: other nodes replace a partition's, and everything around them stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage.backends.numerics.reference import run_reference
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.splice import splice
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.plan_check import check_plan
from collage.partitioner.target import Target

ORT, INT8 = Target.parse("onnxruntime"), Target.parse("onnxruntime -quant=dynamic_int8")
SAMPLE = {"x": np.array([1.0, -2.0, 3.0, 4.0], np.float32)}
MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y, float[4] z)
<float[4] one = {1, 1, 1, 1}, float[4] two = {2, 2, 2, 2}, float[4] four = {4, 4, 4, 4}> {
   [double] a = Mul(x, two)
   [raise] b = Add(a, one)
   [beside] z = Sub(x, one)
   [end] y = Mul(b, four)
}
"""
# Computes 2 x + 1 otherwise, under names that the model has already.
PART = """
<ir_version: 10, opset_import: ["" : OPSET]>
h (float[4] x) => (float[4] b) <float[4] one = {1, 1, 1, 1}> {
   [double] a = Add(x, x)
   [end] b = Sum(a, one)
}
"""


def saved(text: str, path: Path) -> Path:
    model = ir.from_onnx_text(text)
    onnx.save(onnx.shape_inference.infer_shapes(ir.to_proto(model)), path)
    return path


def plan_of(model: Model) -> Plan:
    place = {node.name: 1 << node.index for node in model.index.nodes}
    return Plan(
        (
            Candidate(place["beside"], ORT),
            Candidate(place["double"] | place["raise"], INT8),
            Candidate(place["end"], ORT),
        ),
        2,
    )


def test_partition_is_replaced_by_other_nodes(tmp_path: Path) -> None:
    model = Model.open(saved(MODEL, tmp_path / "model.onnx"))
    part = saved(PART.replace("OPSET", "17"), tmp_path / "part.onnx")
    found = splice(model, plan_of(model), {1: part}, tmp_path / "spliced.onnx")
    onnx.checker.check_model(str(found.model.path), full_check=True)
    check_plan(found.model.index, found.plan)
    assert [node.op for node in found.model.index.nodes] == ["Sub", "Add", "Sum", "Mul"]
    assert [(p.nodes, p.target) for p in found.plan.partitions] == [
        (0b0001, ORT),
        (0b0110, INT8),
        (0b1000, ORT),
    ]
    assert found.plan.lanes == 2
    # `two` is gone with its only reader; both weights named `one` are here.
    assert found.model.index.constants == {"one", "four", "partition-1/one"}
    assert found.model.index.inputs == model.index.inputs
    assert found.model.index.outputs == model.index.outputs
    wanted = run_reference(model.path, SAMPLE, ["y", "z"])
    for name, value in run_reference(found.model.path, SAMPLE, ["y", "z"]).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_the_same_bytes_each_time_and_again(tmp_path: Path) -> None:
    model = Model.open(saved(MODEL, tmp_path / "model.onnx"))
    part = saved(PART.replace("OPSET", "17"), tmp_path / "part.onnx")
    one, two = (splice(model, plan_of(model), {1: part}, tmp_path / n) for n in ("1.onnx", "2.onnx"))
    assert one.model.path.read_bytes() == two.model.path.read_bytes()
    again = splice(one.model, one.plan, {1: part}, tmp_path / "3.onnx")
    assert again.model.index.constants == {"one", "four", "partition-1/one-2"}


def test_replacement_may_have_operators_of_onnxruntime(tmp_path: Path) -> None:
    model = Model.open(saved(MODEL, tmp_path / "model.onnx"))
    text = PART.replace('"" : OPSET', '"" : 17, "com.microsoft" : 1')
    part = tmp_path / "part.onnx"
    ir.save(ir.from_onnx_text(text.replace("Sum(a, one)", "com.microsoft.BiasAdd(a, one, a)")), part)
    found = splice(model, plan_of(model), {1: part}, tmp_path / "spliced.onnx")
    onnx.checker.check_model(str(found.model.path), full_check=True)
    assert found.model.ir.opset_imports == {"": 17, "com.microsoft": 1}
    plain = splice(model, plan_of(model), {}, tmp_path / "plain.onnx")
    assert plain.model.ir.opset_imports == {"": 17}


def test_nothing_to_replace_leaves_the_numbers(tmp_path: Path) -> None:
    model = Model.open(saved(MODEL, tmp_path / "model.onnx"))
    found = splice(model, plan_of(model), {}, tmp_path / "spliced.onnx")
    assert {n.name for n in found.model.index.nodes} == {n.name for n in model.index.nodes}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PART.replace("OPSET", "16"), "the model of opset 17"),
        (
            PART.replace('"" : OPSET', '"" : 17, "own" : 1').replace("Sum(", "own.Sum("),
            r"is of \['own'\]",
        ),
        (PART.replace("OPSET", "17").replace("(float[4] x)", "(float[4] w)"), "other inputs"),
    ],
)
def test_replacement_that_does_not_fit_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    model = Model.open(saved(MODEL, tmp_path / "model.onnx"))
    part = saved(text.replace("Add(x, x)", "Add(w, w)") if "w)" in text else text, tmp_path / "p.onnx")
    with pytest.raises(ModelError, match=reason):
        splice(model, plan_of(model), {1: part}, tmp_path / "spliced.onnx")


def test_bodies_see_what_crosses_the_border(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[4] y) <float[4] one = {1, 1, 1, 1}, float[4] two = {2, 2, 2, 2}> {
       [double] a = Mul(x, two)
       [raise] b = Add(a, one)
       [pick] y = If(c) <
           then_branch = t () => (float[4] p) { [up] p = Add(b, one) },
           else_branch = e () => (float[4] q) { [down] q = Sub(b, one) }
       >
    }
    """
    model = Model.open(saved(text, tmp_path / "model.onnx"))
    part = saved(PART.replace("OPSET", "17"), tmp_path / "part.onnx")
    plan = Plan((Candidate(0b011, INT8), Candidate(0b100, ORT)))
    found = splice(model, plan, {0: part}, tmp_path / "spliced.onnx")
    onnx.checker.check_model(str(found.model.path), full_check=True)
    for condition in (True, False):
        sample = {**SAMPLE, "c": np.array(condition)}
        wanted = run_reference(model.path, sample, ["y"])
        made = run_reference(found.model.path, sample, ["y"])
        np.testing.assert_array_equal(made["y"], wanted["y"])

"""Free dimensions of a model, those that follow from others, and how they are bound."""

from __future__ import annotations

import pickle

import onnx_ir as ir
import pytest

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.dimensions import bind
from collage.partitioner.ingest.expressions import Linear
from collage.partitioner.ingest.model_dims import FreeDimensionsError, read_dims

DECODER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, past] cache, float[batch, 1] x, float[batch, "past + 1"] mask, int64 rate, float[?, 3] y)
  => (float[batch, "past + 1"] present, float["2*past", other] odd)
{
  present = Concat<axis=1>(cache, x)
  odd = Identity(present)
}"""


def _decoder() -> ir.Model:
    model = ir.from_onnx_text(
        DECODER.replace('"past + 1"', "past_plus").replace('"2*past"', "past_two")
    )
    renamed = {"past_plus": "past + 1", "past_two": "2*past"}
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape(
            [
                renamed.get(d.value or "", d.value) if isinstance(d, ir.SymbolicDim) else d
                for d in value.shape
            ]
        )
    return model


def test_free_and_derived_dimensions_are_told_apart() -> None:
    dims = read_dims(_decoder())
    assert dims.free == ("batch", "past", "y:0") and dims.scalars == ("rate",)
    assert dims.derived == {"past + 1": Linear((("past", 1),), 1)}
    assert [(t.name, axis) for t, axis in dims.places["batch"]] == [("cache", 0), ("x", 0), ("mask", 0)]
    assert dims.place("past + 1") == "axis 1 of input mask"
    assert dims.outputs[1].dims == ("2*past", "other")
    assert pickle.loads(pickle.dumps(dims)) == dims


def test_a_sum_of_what_no_input_has_is_a_name() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    )
    model.graph.inputs[0].shape = ir.Shape(["elsewhere + 1"])
    dims = read_dims(model)
    assert dims.free == ("elsewhere + 1",) and not dims.derived
    bind(model, {"elsewhere + 1": 3})
    assert model.graph.inputs[0].shape == [3]


def test_sums_follow_from_the_sizes_that_are_given() -> None:
    model = _decoder()
    bind(model, {"batch": 1, "past": 16, "y:0": 2})
    shapes = {value.name: list(value.shape or ()) for value in model.graph.inputs}
    assert shapes["mask"] == [1, 17] and shapes["cache"] == [1, 16]
    present, odd = (list(value.shape or ()) for value in model.graph.outputs)
    assert present == [1, 17] and odd[0] == 32 and isinstance(odd[1], ir.SymbolicDim)


def test_dimensions_that_stay_free_keep_what_follows() -> None:
    model = _decoder()
    bind(model, {"batch": 1}, kept=["past", "y:0"])
    shapes = {v.name: [getattr(d, "value", d) for d in v.shape or ()] for v in model.graph.inputs}
    assert shapes["cache"] == [1, "past"] and shapes["mask"] == [1, "past + 1"]
    assert shapes["y"] == ["y:0", 3]
    with pytest.raises(ModelError, match="no dimension rows"):
        bind(_decoder(), {"batch": 1, "past": 1, "y:0": 1}, kept=["rows"])


def test_an_axis_may_be_bound_against_its_sum() -> None:
    model = _decoder()
    bind(model, {"batch": 1, "past": 16, "y:0": 2, "mask:1": 99})
    assert list(model.graph.inputs[2].shape or ()) == [1, 99]


def test_a_size_against_its_sum_is_told() -> None:
    with pytest.raises(ModelError) as raised:
        bind(_decoder(), {"batch": 1, "past": 16, "past + 1": 20, "y:0": 2})
    assert str(raised.value) == (
        "past + 1=20 contradicts past=16, with which axis 1 of input mask has 17; leave past + 1 out"
    )


def test_a_dimension_that_stays_free_tells_all_dimensions() -> None:
    with pytest.raises(FreeDimensionsError, match=r"free input dimensions: cache:1 \(past\)") as raised:
        bind(_decoder(), {"batch": 1, "y:0": 2})
    copied = pickle.loads(pickle.dumps(raised.value))
    assert copied.dims == raised.value.dims and copied.dims.free == ("batch", "past", "y:0")


def test_an_input_with_the_name_of_a_dimension_stays_an_input() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[length, 2] x, int64 length) => (float[length, 2] y) { f = Cast<to = 1>(length)  y = Mul(x, f) }"""
    )
    bind(model, {"length": 3})
    assert [value.name for value in model.graph.inputs] == ["x", "length"]
    assert model.graph.inputs[0].shape == (3, 2)

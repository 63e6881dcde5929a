"""A normalized model with free dimensions, and copies of it with sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.model.reference import RUNTIME
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.binding import bind_sizes
from collage.partitioner.ingest.normalize import normalize
from tests.collage.shapes import models as shape_models


def _free(folder: Path, model: onnx.ModelProto, kept: list[str], **dims: int) -> Model:
    source = folder / "source.onnx"
    onnx.save(model, source)
    return Model.open(normalize(source, folder / "free", dims, 0, RUNTIME, kept).path)


def test_free_dimensions_keep_their_names(tmp_path: Path) -> None:
    free = _free(tmp_path, shape_models.chain(), ["length"], batch=2)
    described = onnxruntime.InferenceSession(free.path).get_inputs()
    assert [node.shape for node in described] == [[2, "length", 8], ["length"]]


def test_an_axis_without_a_name_is_named_by_its_place(tmp_path: Path) -> None:
    model = shape_models.image()
    model.graph.input[0].type.tensor_type.shape.dim[3].ClearField("dim_param")
    free = _free(tmp_path, model, ["x:3"], batch=1, height=8)
    assert onnxruntime.InferenceSession(free.path).get_inputs()[0].shape == [1, 3, 8, "x:3"]


def test_a_dimension_that_is_neither_bound_nor_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"free input dimensions: x:0 \(batch\)"):
        _free(tmp_path, shape_models.chain(), ["length"])


def test_a_kept_dimension_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no dimension width"):
        _free(tmp_path, shape_models.chain(), ["length", "width"], batch=1)


def test_a_bound_copy_has_the_same_nodes_and_knows_all_shapes(tmp_path: Path) -> None:
    free = _free(tmp_path, shape_models.chain(), ["batch", "length"])
    info = bind_sizes(free.path, tmp_path / "bound", {"batch": 2, "length": 6}, RUNTIME)
    bound = Model.open(info.path)
    assert [node.name for node in bound.index.nodes] == [node.name for node in free.index.nodes]
    assert [spec.shape for spec in info.inputs] == [(2, 6, 8), (6,)]
    assert all(spec.is_static for spec in bound.index.values.values())
    assert bound.index.values["z"].shape == (2, 3)


def test_a_bound_copy_computes_the_same(tmp_path: Path) -> None:
    free = _free(tmp_path, shape_models.chain(), ["batch", "length"])
    info = bind_sizes(free.path, tmp_path / "bound", {"batch": 2, "length": 5}, RUNTIME)
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((2, 5, 8), np.float32), "bias": rng.standard_normal(5, np.float32)}
    made = [
        onnxruntime.InferenceSession(path).run(None, feed)
        for path in (tmp_path / "source.onnx", info.path)
    ]
    for wanted, got in zip(*made, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_shape_that_depends_on_data_stays_open(tmp_path: Path) -> None:
    free = _free(tmp_path, shape_models.data_dependent(), ["rows"])
    info = bind_sizes(free.path, tmp_path / "bound", {"rows": 3}, RUNTIME)
    values = Model.open(info.path).index.values
    assert values["product"].shape == (3, 4)
    assert values["y"].shape == (2, None)
    assert any("known only at run time" in text for text in info.warnings)


def test_a_declared_size_of_a_traced_example_is_not_believed(tmp_path: Path) -> None:
    model = shape_models.data_dependent()
    model.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 7
    free = _free(tmp_path, model, ["rows"])
    assert free.index.values["z"].shape == (None, 4)


def test_a_dimension_without_a_size_is_named(tmp_path: Path) -> None:
    free = _free(tmp_path, shape_models.chain(), ["batch", "length"])
    with pytest.raises(ModelError, match="'length', which has no size"):
        bind_sizes(free.path, tmp_path / "bound", {"batch": 2})


def test_a_dimension_that_follows_from_others_gets_its_size(tmp_path: Path) -> None:
    model = shape_models.chain()
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "length":
                dim.dim_param = "past + 1"
    onnx.save(model, tmp_path / "free.onnx")
    info = bind_sizes(tmp_path / "free.onnx", tmp_path / "bound", {"batch": 2, "past": 4}, RUNTIME)
    assert [spec.shape for spec in info.inputs] == [(2, 5, 8), (5,)]

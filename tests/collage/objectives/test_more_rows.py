"""A model with more rows: the same nodes, rows that stay apart, and a reason where they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from collage.backends.numerics.reference import run_reference
from collage.backends.numerics.seeded import seeded_inputs
from collage.objectives.more_rows import MoreRows, with_rows
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests.models import MODELS

HEAD = '<ir_version: 8, opset_import: ["" : 20]>'


def model_of(text: str, folder: Path) -> Model:
    onnx.save(onnx.parser.parse_model(f"{HEAD} {text}"), folder / "source.onnx")
    return Model.open(normalize(folder / "source.onnx", folder / "normalized", {}).path)


def rows_of(model: Model, folder: Path, rows: int = 4) -> MoreRows:
    made = with_rows(model, rows, folder / "rows", None)
    assert isinstance(made, MoreRows), made
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "g (float[1, 6] x) => (float[1, 3] y) <int64[2] s = {1, 3}, int64[3] t = {1, 2, 3}, int64[1] a = {1}>"
        "{ r = Reshape(x, t) m = ReduceSum <keepdims = 0> (r, a) y = Reshape(m, s) }",
        "g (float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) <int64[4] s = {1, 2, 8, 8}, float[0] none = {}>"
        '{ y = Resize <mode = "nearest"> (x, none, none, s) }',
        "g (float[1, 6] x, float[1, 6] z) => (float[1, 6] y, float[1, 12] w)"
        "{ y = Add(x, z) w = Concat <axis = 1> (x, z) }",
    ],
)
def test_rows_are_as_they_are_alone(body: str, tmp_path: Path) -> None:
    model = model_of(body, tmp_path)
    made = rows_of(model, tmp_path)
    assert [node.name for node in made.model.index.nodes] == [n.name for n in model.index.nodes]
    names = list(model.index.outputs)
    inputs = [model.index.values[name] for name in model.index.inputs]
    samples = [seeded_inputs(inputs, seed) for seed in range(made.rows)]
    whole = {name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]}
    together = run_reference(made.model.path, whole, names)
    for row, sample in enumerate(samples):
        alone = run_reference(model.path, sample, names)
        for name in names:
            np.testing.assert_allclose(together[name][row : row + 1], alone[name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("g (float[2, 3] x) => (float[2, 3] y) { y = Tanh(x) }", "first dimension of 'x' is not 1"),
        # The mean over all rows is no row's own.
        (
            "g (float[1, 3] x) => (float[1, 3] y) <int64[1] a = {0}>"
            "{ m = ReduceMean(x, a) y = Sub(x, m) }",
            "output 'y' of a row depends on other rows",
        ),
        (
            "g (float[1, 3] x) => (float[1, 3] y) <int64[1] a = {0}> { y = ReduceSum(x, a) }",
            "output 'y' has shape",
        ),
        (
            "g (float[1, 3] x) => (float[1, 2, 3] y) <int64[3] s = {1, 1, 3}, float[1, 1, 3] first = {1, 2, 3}>"
            "{ r = Reshape(x, s) y = Concat <axis = 1> (first, r) }",
            "",
        ),
    ],
)
def test_model_whose_rows_do_not_stay_apart_is_refused(body: str, reason: str, tmp_path: Path) -> None:
    made = with_rows(model_of(body, tmp_path), 4, tmp_path / "rows", None)
    assert isinstance(made, str) and reason in made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppocr_cls", "light_squeezenet"])
def test_networks_take_more_rows(name: str, tmp_path: Path) -> None:
    info = MODELS[name]
    normalize(info.path, tmp_path, info.dims)
    made = rows_of(Model.open(tmp_path / "model.onnx"), tmp_path)
    assert made.info.inputs[0].static_shape[0] == 4

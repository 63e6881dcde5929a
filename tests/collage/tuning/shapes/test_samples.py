"""Sample inputs of several sizes: those of a shape, and those that are cut or repeated for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import collage
from collage.artifact.artifact import read_report
from collage.model.sample_inputs import read_samples
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.shapes.space import parse_dims
from collage.tuning.shapes.samples import GivenSamples, ShapeSamples
from tests.collage.shapes import models
from tests.tuning import tuned


def _free(folder: Path) -> Model:
    onnx.save(models.chain(), folder / "free.onnx")
    return Model.open(folder / "free.onnx")


def _chain_sample(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, length, 8)).astype(np.float32)
    return {"x": x, "bias": rng.standard_normal(length).astype(np.float32)}


def _folder(folder: Path, *samples: dict[str, np.ndarray]) -> Path:
    place = folder / "samples"
    place.mkdir()
    for number, sample in enumerate(samples):
        np.savez(place / f"{number}.npz", allow_pickle=False, **sample)
    return place


def test_a_sample_belongs_to_the_shape_that_it_has(tmp_path: Path) -> None:
    path = _folder(tmp_path, _chain_sample(1, 4), _chain_sample(1, 9), _chain_sample(1, 4, seed=1))
    space = parse_dims({"batch": "1..3", "length": "2..40"})
    given = GivenSamples(path, _free(tmp_path), space)
    own = given.at({"batch": 1, "length": 4})
    assert own is not None and own.origin == "given" and len(own.samples) == 2
    far = given.at({"batch": 3, "length": 40})
    assert far is not None and far.origin == "derived"
    np.testing.assert_array_equal(far.samples[0]["bias"][:9], _chain_sample(1, 9)["bias"])
    assert GivenSamples(None, _free(tmp_path), space).at({"batch": 1, "length": 4}) is None


def test_samples_of_a_shape_are_a_file_again(tmp_path: Path) -> None:
    samples = [_chain_sample(1, 4), _chain_sample(1, 4, seed=1)]
    path = ShapeSamples(samples, "given").written(tmp_path / "new" / "inputs.npz")
    free = _free(tmp_path)
    read = read_samples(path, [free.index.values[name] for name in free.index.inputs])
    assert len(read) == 2
    for mine, other in zip(read, samples, strict=True):
        assert all(np.array_equal(mine[name], other[name]) for name in other)


@pytest.mark.slow
def test_tuning_takes_samples_of_several_sizes(tmp_path: Path) -> None:
    path = _folder(tmp_path, _chain_sample(1, 13), _chain_sample(1, 30))
    dims = {"batch": "1", "length": "2..40"}
    options: dict[str, Any] = {"dims": dims, "inputs": path, "time_limit_s": 20.0}
    report = read_report(tuned(models.chain(), ["onnxruntime"], tmp_path, **options).path)
    assert report["sampled_inputs"] == "given"
    sizes = [row["sizes"]["length"] for row in report["shapes"]["rows"]]
    assert {2, 13, 30, 40} <= set(sizes)
    (told,) = [text for text in report["warnings"] if "no sample has" in text]
    assert "length=2" in told and "length=40" in told and "length=13" not in told
    with collage.load(tmp_path / "tuned.onnx") as session:
        assert session.run(None, _chain_sample(1, 21))[0].shape == (1, 21, 8)


@pytest.mark.slow
def test_samples_alone_say_the_sizes(tmp_path: Path) -> None:
    path = _folder(tmp_path, _chain_sample(1, 5), _chain_sample(1, 7))
    made = tuned(models.chain(), ["onnxruntime"], tmp_path, inputs=path, time_limit_s=2.0)
    assert read_report(made.path)["shapes"]["dims"] == {"length": "5..7"}


def test_a_sample_outside_of_the_range_is_named(tmp_path: Path) -> None:
    path = _folder(tmp_path, _chain_sample(1, 4), _chain_sample(1, 50))
    message = (
        r"inputs: axis 1 of input x has size 50 in a sample, and length is from 2..40; leave the sample "
        r"out, or widen the sizes: --dim length=2..50"
    )
    with pytest.raises(BadInputError, match=message):
        tuned(
            models.chain(), ["onnxruntime"], tmp_path, inputs=path, dims={"batch": 1, "length": "2..40"}
        )

"""Proposals of ranges to stated models, of which it is known what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from collage.partitioner.ingest.model_dims import ModelDims, TensorDims
from collage.shapes.proofs import OutOfTriesError, base, proposed

Taken = Callable[[Mapping[str, int]], bool]


def _model(*inputs: TensorDims) -> ModelDims:
    return ModelDims(inputs, ())


TEXT = _model(TensorDims("ids", "int64", ("batch", "length")))
IMAGE = _model(TensorDims("x", "float", (None, 3, None, None)))
SILERO = _model(
    TensorDims("input", "float", (None, None)), TensorDims("state", "float", (2, None, 128))
)


class _Run:
    """Refuses with a message what a model does not take, and counts."""

    def __init__(self, takes: Taken) -> None:
        self._takes = takes
        self.count = 0

    def __call__(self, sizes: Mapping[str, int]) -> str | None:
        self.count += 1
        return None if self._takes(sizes) else "node 'r' (Reshape) fails"


def _proposals(model: ModelDims, takes: Taken) -> dict[str, str]:
    run = _Run(takes)
    at = base(model, {}, model.free, run)
    return {name: proposed(model, at, name, run) for name in model.free} if at else {}


@pytest.mark.parametrize(
    ("model", "takes", "texts"),
    [
        (TEXT, lambda s: s["length"] <= 512, {"batch": "1..8", "length": "1..512"}),
        (TEXT, lambda s: s["length"] <= 77, {"batch": "1..8", "length": "1..64"}),
        (TEXT, lambda s: s["length"] == 128 and s["batch"] == 1, {"batch": "1", "length": "128"}),
        (TEXT, lambda s: s["length"] >= 5, {"batch": "1..8", "length": "8..512"}),
        (
            IMAGE,
            lambda s: s["x:2"] % 32 == s["x:3"] % 32 == 0,
            {"x:0": "1..8", "x:2": "32..640/32", "x:3": "32..640/32"},
        ),
        (IMAGE, lambda s: s["x:2"] == 48, {"x:0": "1..8", "x:2": "48", "x:3": "32..640"}),
        (
            SILERO,
            lambda s: s["input:1"] == 576 and s["input:0"] == s["state:1"],
            {"input:0": "1", "input:1": "576", "state:1": "1"},
        ),
    ],
)
def test_ranges_are_what_a_model_takes(model: ModelDims, takes: Taken, texts: dict[str, str]) -> None:
    assert _proposals(model, takes) == texts


def test_nothing_is_proposed_where_nothing_runs() -> None:
    run = _Run(lambda sizes: False)
    assert base(IMAGE, {}, IMAGE.free, run) == {} and run.count <= 64


@pytest.mark.parametrize(
    ("tries", "text"), [(0, "16"), (2, "16"), (3, "1..16"), (4, "1..32"), (5, "1..64"), (7, "1..256")]
)
def test_what_is_proven_when_the_time_is_over_is_proposed(tries: int, text: str) -> None:
    left = tries

    def run(sizes: Mapping[str, int]) -> str | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OutOfTriesError
        return None

    assert proposed(TEXT, {"batch": 1, "length": 16}, "length", run) == text


def test_sizes_beyond_the_first_that_is_not_taken_are_not_tried() -> None:
    tried = []

    def run(sizes: Mapping[str, int]) -> str | None:
        tried.append(sizes["length"])
        return "it is slow" if sizes["length"] > 100 else None

    assert proposed(TEXT, {"batch": 1, "length": 16}, "length", run) == "1..64"
    assert max(tried) == 128

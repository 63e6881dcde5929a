"""Proposals and proofs against stated models: what they take is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from collage.partitioner.ingest.model_dims import ModelDims, TensorDims
from collage.shapes.dim_text import DimSizes, parse_dim
from collage.shapes.proofs import base, proposed, refused

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


def _dims(**texts: str) -> dict[str, DimSizes]:
    return {name: parse_dim(name, text) for name, text in texts.items()}


@pytest.mark.parametrize(
    ("dims", "takes", "name", "words"),
    [
        (_dims(n="1..512"), lambda s: s["n"] <= 300, "n", "size 512: node 'r' (Reshape) fails; it takes 300, so give --dim n=1..300"),
        (_dims(n="1..512"), lambda s: s["n"] >= 7, "n", "size 1: node 'r' (Reshape) fails; it takes 7, so give --dim n=7..512"),
        (_dims(n="32..640/32"), lambda s: s["n"] <= 300, "n", "--dim n=32..288/32"),
        (_dims(n="16,64,512"), lambda s: s["n"] == 64, "n", "size 16: node 'r' (Reshape) fails; it takes 64, so give --dim n=64"),
        (_dims(b="1..8", n="1..512"), lambda s: s["n"] <= 300, "n", "--dim n=1..300"),
        (_dims(b="1..8", n="1..512"), lambda s: s["b"] * s["n"] <= 600, None, "b=8, n=512 together: node 'r'"),
        (_dims(n="8"), lambda s: s["n"] == 7, None, "cannot take n=8: node 'r' (Reshape) fails"),
        (_dims(n="8..9"), lambda s: s["n"] == 7, "n", "cannot take n=8: node 'r' (Reshape) fails"),
        ({}, lambda s: False, None, "cannot take its inputs"),
    ],
)  # fmt: skip
def test_a_size_that_is_not_taken_is_told(
    dims: dict[str, DimSizes], takes: Taken, name: str | None, words: str
) -> None:
    refusal = refused(dims, _Run(takes))
    assert refusal is not None
    assert refusal.dimension == name and words in f"{refusal.message}; {refusal.hint}"


def test_ends_that_run_are_tried_once_each() -> None:
    run = _Run(lambda sizes: True)
    assert refused(_dims(a="1..9", b="3"), run) is None and run.count == 2

"""Ends of ranges that stated models do not take, and the flags that they take instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from collage.partitioner.ingest.model_dims import ModelDims, TensorDims
from collage.shapes.dim_text import DimSizes, parse_dim
from collage.shapes.refusals import refused

Taken = Callable[[Mapping[str, int]], bool]


class _Run:
    """Refuses with a message what a model does not take, and counts."""

    def __init__(self, takes: Taken) -> None:
        self._takes = takes
        self.count = 0

    def __call__(self, sizes: Mapping[str, int]) -> str | None:
        self.count += 1
        return None if self._takes(sizes) else "node 'r' (Reshape) fails"


def _dims(**texts: str) -> dict[str, DimSizes]:
    return {name: parse_dim(name, text) for name, text in texts.items()}


def _model(dims: Mapping[str, DimSizes]) -> ModelDims:
    return ModelDims((TensorDims("x", "float", tuple(dims)),), ())


@pytest.mark.parametrize(
    ("texts", "takes", "words"),
    [
        ({"n": "1..512"}, lambda s: s["n"] <= 300, "dimension n (axis 0 of input x): the model cannot take size 512: node 'r' (Reshape) fails; it takes 300, so give --dim n=1..300"),
        ({"n": "1..512"}, lambda s: s["n"] >= 7, "size 1: node 'r' (Reshape) fails; it takes 7, so give --dim n=7..512"),
        ({"n": "32..640/32"}, lambda s: s["n"] <= 300, "--dim n=32..288/32"),
        ({"n": "1,512"}, lambda s: s["n"] <= 1, "it takes 1, so give --dim n=1"),
        ({"n": "16,64,512"}, lambda s: s["n"] == 64, "size 16: node 'r' (Reshape) fails; it takes 64, so give --dim n=64"),
        ({"b": "1..8", "n": "1..512"}, lambda s: s["n"] <= 300, "dimension n (axis 1 of input x): the model cannot take size 512"),
        ({"b": "1..8", "n": "1..512"}, lambda s: s["b"] * s["n"] <= 600, "cannot take b=8, n=512 together: node 'r' (Reshape) fails; it takes b=1, n=1, so give smaller"),
        ({"b": "3", "n": "9"}, lambda s: s["n"] == 16, "dimension n (axis 1 of input x): the model cannot take size 9: node 'r' (Reshape) fails; it takes 16, so give --dim n=16"),
        ({"b": "3", "len": "9"}, lambda s: s["len"] == 16 and s["b"] == 1, "cannot take b=3, len=9: node 'r' (Reshape) fails; it takes b=1, len=16, so give --dim b=1 --dim len=16"),
    ],
)  # fmt: skip
def test_a_size_that_is_not_taken_is_told_with_one_that_is(
    texts: dict[str, str], takes: Taken, words: str
) -> None:
    dims = _dims(**texts)
    refusal = refused(_model(dims), dims, _Run(takes))
    assert refusal is not None and refusal.is_remedied and words in refusal.message


@pytest.mark.parametrize(("texts", "told"), [({"n": "8"}, "n=8"), ({}, "its inputs")])
def test_a_model_that_runs_nowhere_has_no_remedy(texts: dict[str, str], told: str) -> None:
    dims = _dims(**texts)
    refusal = refused(_model(dims), dims, _Run(lambda sizes: False))
    assert refusal is not None and not refusal.is_remedied
    assert (
        refusal.message == f"the model cannot take {told}: node 'r' (Reshape) fails; give other sizes"
    )


_SEEN = [({"n": 16, "past": 0, "total": 16}, 1.0), ({"n": 1, "past": 32, "total": 33}, 9.0)]


def _fits(sizes: Mapping[str, int]) -> bool:
    return sizes["n"] + sizes["past"] == sizes["total"]


@pytest.mark.parametrize(
    ("batch", "takes", "words"),
    [
        ("1..8", _fits, None),
        ("1..8", lambda s: _fits(s) and s["b"] <= 4, "dimension b (axis 0 of input x): the model cannot take size 8"),
        ("1..8", lambda s: _fits(s) and s["n"] > 1, "cannot take n=1, past=32, total=33, which was seen: node 'r' (Reshape) fails; it takes b=1, n=16, past=0, total=16, so leave that shape out"),
        ("1..8", lambda s: _fits(s) and s["b"] + s["past"] < 40, "cannot take b=8, n=1, past=32, total=33 together"),
        ("1", lambda s: s["total"] == 320, "--dim total=320 instead of the shapes that were seen"),
    ],
)  # fmt: skip
def test_dimensions_that_were_seen_together_are_tried_together(
    batch: str, takes: Taken, words: str | None
) -> None:
    dims = _dims(b=batch, n="1,16", past="0,32", total="16,33")
    refusal = refused(_model(dims), dims, _Run(takes), _SEEN)
    if words is None:
        assert refusal is None
    else:
        assert refusal is not None and refusal.is_remedied and words in refusal.message


def test_a_range_that_is_wider_than_what_was_seen_is_tried_at_its_ends() -> None:
    dims = _dims(n="1..512")
    refusal = refused(
        _model(dims), dims, _Run(lambda s: s["n"] <= 300), [({"n": 16}, 1.0), ({"n": 64}, 1.0)]
    )
    assert refusal is not None and "it takes 300, so give --dim n=1..300" in refusal.message


def test_ends_that_run_are_tried_once_each() -> None:
    dims, run = _dims(a="1..9", b="3"), _Run(lambda sizes: True)
    assert refused(_model(dims), dims, run) is None and run.count == 2

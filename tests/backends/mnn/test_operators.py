"""Forms of operators that MNN gets wrong are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.backends.mnn.backend import MnnBackend
from collage.model.reference import ingest
from collage.partitioner.target import Target
from tests.shipped_models.test_ingest import saved


def _slice(first: int, last: int, step: int, size: int) -> str:
    numbers = {"first": first, "last": last, "axis": 1, "step": step}
    weights = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in numbers.items())
    return f"m (float[2, 8] x) => (float[2, {size}] y) <{weights}> {{ y = Slice(x, first, last, axis, step) }}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "last", "step", "size", "is_taken"),
    [(20, -20, -1, 8, False), (7, -3, -2, 1, False), (0, 7, 2, 4, True), (5, 20, 1, 3, True)],
)
def test_slices_that_go_backward_are_refused(
    first: int, last: int, step: int, size: int, is_taken: bool, tmp_path: Path
) -> None:
    """MNN 3.6 reads beyond the data there: wrong numbers, or a damaged heap."""
    model, _ = ingest(saved(_slice(first, last, step, size), tmp_path), tmp_path)
    reason = MnnBackend().supports(model.index, 0, Target("mnn"))
    assert (reason is None) is is_taken, reason


@pytest.mark.parametrize(
    ("pads", "width", "is_taken"), [("0, -1, 0, 1", 8, False), ("0, 1, 0, 1", 10, True)]
)
def test_pads_that_cut_off_are_refused(pads: str, width: int, is_taken: bool, tmp_path: Path) -> None:
    """MNN 3.6 crashes there."""
    text = f"m (float[2, 8] x) => (float[2, {width}] y) <int64[4] pads = {{{pads}}}> {{ y = Pad(x, pads) }}"
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    reason = MnnBackend().supports(model.index, 0, Target("mnn"))
    assert (reason is None) is is_taken, reason


@pytest.mark.parametrize(
    ("inputs", "is_taken"), [("x, s, z", False), ("x, s", True), ("x, z, x", True)]
)
def test_three_inputs_that_are_broadcast_are_refused(
    inputs: str, is_taken: bool, tmp_path: Path
) -> None:
    """MNN 3.6 computes such a Min wrongly."""
    text = f"m (float[3, 4] x, float[3, 4] z) => (float[3, 4] y) <float s = {{0.25}}> {{ y = Min({inputs}) }}"
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    reason = MnnBackend().supports(model.index, 0, Target("mnn"))
    assert (reason is None) is is_taken, reason

"""The cases of `benchmarks.shapes`: sizes of requests, and models that take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.shapes.cases import CASES
from benchmarks.shapes.tuning_time import _ratio, five_sizes, table
from collage.shapes.dim_text import parse_dim


@pytest.mark.parametrize("name", CASES)
def test_requests_have_sizes_that_are_served(name: str) -> None:
    case = CASES[name]
    sizes = case.sizes(500)
    dim = parse_dim(case.free, case.range)
    assert all(size in dim for size in sizes) and sizes == case.sizes(500)
    assert 0.7 * case.median < np.median(sizes) < 1.4 * case.median
    assert len(set(sizes)) > 8


@pytest.mark.parametrize("name", CASES)
def test_five_sizes_stand_for_a_range(name: str) -> None:
    case = CASES[name]
    sizes = five_sizes(case)
    assert (sizes[0], sizes[-1], len(sizes)) == (case.low, case.high, 5)
    assert sizes == sorted(set(sizes))
    assert all((size - case.low) % case.step == 0 for size in sizes)


def test_the_ratio_of_tuning_times_is_that_of_the_medians() -> None:
    seconds = {"one": [10.0, 90.0, 12.0], "five": [30.0, 24.0, 20.0]}
    row = {"sizes": [8, 16], "seconds": seconds, "ratio": _ratio(seconds)}
    assert "| encoder | 8, 16 | 12 | 24 | 2.00 |" in table({"encoder": row})


@pytest.mark.slow
def test_the_detector_takes_every_size(tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(CASES["yolo_v8n"].make(tmp_path))
    for side in (320, 352):
        (found,) = session.run(None, {"images": np.zeros((1, 3, side, side), np.float32)})
        assert found.shape == (1, 84, sum((side // stride) ** 2 for stride in (8, 16, 32)))


def test_samples_have_sizes_of_their_own(tmp_path: Path) -> None:
    path = CASES["piper"].samples(tmp_path)
    assert path is not None and CASES["encoder"].samples(tmp_path) is None
    with np.load(path) as stored:
        lengths = {
            int(stored[n][0]): stored[n.removesuffix("_lengths")].shape
            for n in stored.files
            if "len" in n
        }
    assert lengths == {size: (1, size) for size in (10, 60, 200)}

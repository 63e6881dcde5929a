"""The benchmark of trained models: its data, its rows, and packages that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.trained.__main__ import _line, _table
from benchmarks.trained.files import _features
from benchmarks.trained.measure import _beside_fp32
from benchmarks.trained.packages import MissingPackageError, package
from benchmarks.trained.pictures import _scene
from benchmarks.trained.speech import _sound
from benchmarks.trained.tones import _melody

CONFIG = {"beg_size": 4, "end_size": 4, "block_size": 8, "padding_token": 256}


def _row(**changes: Any) -> dict[str, Any]:
    return {
        "evaluation": {"metric": "top1", "proven": False, "samples_needed": 299},
        "unseen": {"reference": 0.9, "drop": 0.001, "upper": 0.02, "allowed": 0.009},
        "speedup": 2.0,
        "best_fp32": "openvino",
        "samples": [200, 100],
        "seconds": 100.0,
        "partitions": [["openvino -precision=bf16", 3], ["openvino", 2]],
        **changes,
    }


def test_a_package_that_cannot_be_fetched_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_BENCHMARK_CACHE", str(tmp_path))
    with pytest.raises(MissingPackageError, match="cannot be fetched"):
        package("not a requirement")
    assert not list((tmp_path / "packages").glob("not a requirement"))


def test_rows_tell_what_was_proven_and_what_is_over() -> None:
    over = _row(unseen={"reference": 0.9, "drop": 0.02, "upper": None, "allowed": 0.009})
    rows = {"good": _row(), "bad": over, "missing": {"error": "it cannot be fetched"}}
    assert "no, needs 299" in _line("good", rows["good"])
    table = _table(rows, {"targets": ["openvino"], "hardware": "here"})
    assert "Geomean of 2 models: 2.00" in table
    assert "Over the bound on unseen samples: bad." in table
    assert "| missing | it cannot be fetched |" in table
    columns = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert columns == {10}


def test_the_best_fp32_is_the_fastest_exact_single_target() -> None:
    def plan(target: str, latency_us: float, error: float, partitions: int = 1) -> dict[str, Any]:
        return {
            "targets": [target], "latency_us": latency_us, "max_relative_error": error,
            "partitions": partitions,
        }  # fmt: skip

    report = {
        "targets": ["a", "b", "b -q"],
        "plans": [
            plan("a", 30.0, 1e-6), plan("b", 20.0, 1e-6), plan("b -q", 5.0, 1e-2),
            plan("b", 10.0, 1e-6, partitions=2), {"targets": ["b"], "partitions": 1},
        ],
        "latency_us": 10.0,
    }  # fmt: skip
    assert _beside_fp32(report) == {"best_fp32": "b", "speedup": 2.0}
    assert _beside_fp32({**report, "plans": []})["speedup"] is None


def test_files_are_read_as_magika_reads_them(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"  ab\n")
    assert _features(tmp_path / "f", CONFIG).tolist() == [97, 98, 10, 256, 32, 32, 97, 98]


def test_sounds_and_pictures_are_the_same_each_time_and_finite() -> None:
    random = np.random.default_rng
    sound, pitches = _melody(random(3))
    assert sound.shape == (43_844,) and pitches.shape == (172,)
    assert pitches.min() >= 45 and pitches.max() < 84
    for first, second in (
        (sound, _melody(random(3))[0]),
        (_sound(4, random(1)), _sound(4, random(1))),
        (_scene(random(2)), _scene(random(2))),
    ):
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(_scene(random(2)), _scene(random(4)))

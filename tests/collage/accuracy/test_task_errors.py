"""Errors of mixes in units of what a task allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from collage.accuracy.task import TaskSamples
from collage.accuracy.task_errors import Curve, MixRun, SearchTask, TaskErrors
from collage.backends.numerics.tensor_files import write_samples
from collage.metrics.names import parse_metric

ALLOWED = 0.01


def _errors(
    folder: Path, metric: str, outputs: Sequence[np.ndarray], allowed: float = ALLOWED
) -> TaskErrors:
    samples = [{"y": output} for output in outputs]
    write_samples(folder / "reference.npz", samples)
    stored = TaskSamples(folder / "none.npz", folder / "reference.npz", None, len(samples))
    return TaskErrors(SearchTask(parse_metric(metric), stored, allowed))


def test_the_curve_finds_power_and_scale() -> None:
    proxies = (0.01, 0.02, 0.05, 0.1)
    for power in (1.0, 2.0):
        runs = [MixRun(x, 0.5 * x**power, 1e-4) for x in proxies]
        curve = Curve.fitted(runs, ALLOWED)
        assert curve.power == power
        assert curve.drop(0.05) == pytest.approx(0.5 * 0.05**power, rel=0.6)
        assert curve.drop(0.05) >= 0.5 * 0.05**power


def test_few_samples_make_the_curve_careful() -> None:
    """No drop was seen, on ten samples or on a thousand."""
    few, many = (
        Curve.fitted([MixRun(0.1, 0.0, math.sqrt(0.5) / count)], ALLOWED) for count in (10, 1000)
    )
    assert few.drop(0.05) > ALLOWED > many.drop(0.05)


def test_nothing_known_is_a_small_budget() -> None:
    curve = Curve.fitted([], ALLOWED)
    assert curve.drop(0.02) == pytest.approx(ALLOWED)


def test_a_coarse_metric_is_judged_by_the_proxy(tmp_path: Path) -> None:
    """Two mixes without a flip on four samples: the one that errs more has the larger error."""
    outputs = [np.eye(1, 8, i, dtype=np.float32) for i in range(4)]
    errors = _errors(tmp_path, "top1", outputs)
    runs = [errors.run([{"y": y * (1 + e)} for y in outputs], 0, 4) for e in (0.01, 0.04)]
    assert [run.worse for run in runs] == [0.0, 0.0]
    assert runs[1].proxy == pytest.approx(0.04, rel=1e-3)
    small, large = map(errors.error, runs)
    assert 0 < small < large


def test_a_fine_metric_is_judged_by_its_own_drop(tmp_path: Path) -> None:
    """Of two mixes with the same proxy the metric tells which one harms the task."""
    random = np.random.default_rng(0)
    outputs = [random.normal(size=(1, 16, 50)).astype(np.float32) for _ in range(12)]
    errors = _errors(tmp_path, "perplexity", outputs, allowed=0.05)
    noise = [0.1 * random.normal(size=y.shape).astype(np.float32) for y in outputs]
    shift = [np.full_like(y, np.sqrt(np.mean(n**2))) for y, n in zip(outputs, noise, strict=True)]
    noisy, shifted = (
        errors.run([{"y": y + more} for y, more in zip(outputs, added, strict=True)], 0, 12)
        for added in (noise, shift)
    )
    assert noisy.proxy == pytest.approx(shifted.proxy, rel=0.01)
    assert shifted.worse == pytest.approx(0.0, abs=1e-4)  # softmax does not see a shift
    errors.learn((1,), noisy)
    assert errors.error(shifted) < 0.5 * errors.error(noisy)


def test_a_measured_drop_over_the_bound_is_an_error_over_one(tmp_path: Path) -> None:
    outputs = [np.eye(1, 4, i % 4, dtype=np.float32) for i in range(200)]
    errors = _errors(tmp_path, "top1", outputs)
    flipped = [{"y": y[:, ::-1] if i < 20 else y} for i, y in enumerate(outputs)]
    run = errors.run(flipped, 0, 200)
    assert run.worse == pytest.approx(0.1)
    errors.learn((1,), run)
    assert errors.error(run) > 1.0
    exact = errors.run([{"y": y} for y in outputs], 0, 200)
    assert errors.error(exact) == 0.0


@pytest.mark.parametrize("metric", ["top1", "snr"])
def test_where_nothing_is_allowed_only_what_loses_nothing_is(tmp_path: Path, metric: str) -> None:
    """As with `--at-least 1.0` and no labels: the model itself has just that."""
    outputs = [np.eye(1, 4, i % 4, dtype=np.float32) for i in range(50)]
    errors = _errors(tmp_path, metric, outputs, allowed=0.0)
    assert errors.error(MixRun(0.01, 0.0, 0.007)) > 0.0
    assert errors.error(MixRun(0.01, 0.0, 0.0)) == 0.0
    lost = errors.run([{"y": y[:, ::-1] if i < 2 else y} for i, y in enumerate(outputs)], 0, 50)
    errors.learn((1,), lost)
    assert errors.error(lost) > 1.0
    assert errors.error(errors.run([{"y": y} for y in outputs], 0, 50)) == 0.0


def test_large_outputs_of_the_reference_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = [np.eye(1, 4, i % 4, dtype=np.float32) for i in range(8)]
    made = [{"y": y[:, ::-1] if i == 5 else y} for i, y in enumerate(outputs)]
    kept = _errors(tmp_path, "top1", outputs)
    monkeypatch.setattr("collage.accuracy.task_errors._MOST_KEPT_BYTES", 0)
    read = _errors(tmp_path, "top1", outputs)
    for first, count in ((0, 8), (4, 3)):
        own = made[first : first + count]
        assert read.run(own, first, count) == kept.run(own, first, count)


def test_values_between_blocks_are_no_outputs(tmp_path: Path) -> None:
    outputs = [np.eye(1, 4, i % 4, dtype=np.float32) for i in range(8)]
    errors = _errors(tmp_path, "top1", outputs)
    run = errors.run([{"inside": y[:, ::-1], "y": y} for y in outputs], 0, 8)
    assert (run.proxy, run.worse) == (0.0, 0.0)


def test_outputs_that_are_no_numbers_are_never_within(tmp_path: Path) -> None:
    outputs = [np.ones((1, 4), np.float32)] * 4
    errors = _errors(tmp_path, "top1", outputs)
    assert errors.error(errors.run([{"y": y * np.nan} for y in outputs], 0, 4)) == math.inf

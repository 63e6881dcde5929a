"""Mixes are searched by what they do to a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collage.accuracy.block_search import BlockSearch
from collage.accuracy.error_model import ReducedNodes
from collage.accuracy.task import TaskSamples
from collage.accuracy.task_errors import SearchTask
from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.numerics.tensor_files import write_samples
from collage.metrics.names import parse_metric
from collage.partitioner.graph.model import Model
from collage.runtime.compiled import CompiledRegions
from tests.collage.accuracy.test_mix_runner import (
    EXACT,
    LAYERS,
    REDUCED,
    WIDTH,
    layers,
    request_for,
)

COUNT = 60


@contextmanager
def _search(folder: Path, metric: str, allowed: float) -> Iterator[BlockSearch]:
    path = layers(folder)
    random = np.random.default_rng(5)
    samples = [{"r0": random.standard_normal((4, WIDTH)).astype(np.float32)} for _ in range(COUNT)]
    session = reference_session(path)
    expected = [run_session(session, sample, ["r6"]) for sample in samples]
    write_samples(folder / "all", samples)
    write_samples(folder / "outputs", expected)
    request = request_for(path, folder, (EXACT, REDUCED))
    write_samples(request.samples_file, samples[:6])
    write_samples(request.expected_file, expected[:6])
    task = SearchTask(
        parse_metric(metric), TaskSamples(folder / "all", folder / "outputs", None, COUNT), allowed
    )
    request = replace(request, task=task, error_limits=(1.0,), used_samples=4, budget_s=8.0)
    compiled = CompiledRegions(1)
    yield BlockSearch(request, Model.open(path), compiled)
    compiled.close()


def _disagreement(search: BlockSearch, mix: ReducedNodes) -> float:
    """The share of rows whose largest element moves, computed without the code of tasks."""
    runs = search.runs
    assert runs.task is not None
    steps = [runs.step(part) for part in runs.parts(mix, joined=False)]
    assert all(steps)
    moved = []
    for made, wanted in zip(runs.outputs(mix, slice(None)), runs.expected, strict=True):
        moved.append(made["r6"].argmax(axis=1) != np.asarray(wanted["r6"]).argmax(axis=1))
    return float(np.mean(moved))


@pytest.mark.slow
def test_everything_is_reduced_where_the_task_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with _search(tmp_path, "top1", allowed=0.5) as search:
        found = search.go()
        (best, *_) = found.best[0]
        assert best.reduced[0].bit_count() == 2 * LAYERS
        assert best.error <= 1.0
        assert _disagreement(search, best.reduced) <= 0.5


@pytest.mark.slow
def test_a_smaller_allowance_reduces_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = []
    for decibels in (20, 45, 90):
        (folder := tmp_path / f"{decibels}").mkdir()
        monkeypatch.chdir(folder)
        allowed = parse_metric("snr").distance(100.0, decibels)
        with _search(folder, "snr", allowed) as search:
            found = search.go()
            best = found.best[0][:1]
            reduced.append(best[0].reduced[0].bit_count() if best else 0)
    assert reduced == sorted(reduced, reverse=True)
    assert reduced[0] == 2 * LAYERS and reduced[-1] == 0


def test_what_a_task_teaches_changes_every_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any mix ran on all samples an error is a guess."""
    monkeypatch.chdir(tmp_path)
    with _search(tmp_path, "top1", allowed=0.02) as search:
        guessed = dict(search.runs.errors)
        search.calibrate()
        task = search.runs.task
        assert task is not None and len(task.measured) >= 3
        assert all(run.proxy > 0 for run in task.measured.values())
        known = [m for m, error in guessed.items() if error > 0]
        assert known and all(search.runs.errors[m] != guessed[m] for m in known)
        squares = search.alone[:, 1]
        for i, block in enumerate(search.blocks):
            assert squares[i] == pytest.approx(search.runs.errors[(block.nodes,)] ** 2)

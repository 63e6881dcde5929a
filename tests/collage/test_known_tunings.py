"""What a search found is found again in a moment, and only where nothing that matters is different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from benchmarks.zero_model import SLOW, TARGETS, zero_model
from collage.events import Event
from cost_db.database import CostDatabase
from cost_db.errors import DatabaseUnavailableError
from cost_db.queries import CostFilter
from cost_db.tunings import TuningStore

_TIMING = {"measure", "end_to_end"}


class Tuner:
    """Tunes one model again and again with one database, and says in which stages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'costs.db'}"
        self.model = folder / "zero.onnx"
        self.model.write_bytes(zero_model())
        self.events: list[Event] = []

    def tune(self, targets: tuple[str, ...] = TARGETS, **options: Any) -> collage.Artifact:
        self.events = []
        return collage.tune(
            self.model,
            targets,
            output=self.folder / "zero.collage.onnx",
            database=self.url,
            on_event=self.events.append,
            **{"time_limit_s": 2.0, **options},
        )

    @property
    def searched(self) -> bool:
        return bool(_TIMING & {event.stage for event in self.events})


@pytest.fixture(scope="module")
def tuner(tmp_path_factory: pytest.TempPathFactory) -> Tuner:
    made = Tuner(tmp_path_factory.mktemp("known"))
    made.tune()
    return made


def test_a_known_plan_is_written_without_measuring(tuner: Tuner) -> None:
    first = tuner.tune(fresh=True)
    assert tuner.searched and first.report["known_since"] is None
    again = tuner.tune()
    assert not tuner.searched
    assert again.report["known_since"] is not None
    assert again.report["candidates"]["measured"] == 0 < again.report["candidates"]["from_cache"]
    new = {"candidates", "known_since", "seconds"}
    assert {k: v for k, v in again.report.items() if k not in new} == {
        k: v for k, v in first.report.items() if k not in new
    }
    assert again.plan == first.plan
    with collage.load(again.path) as session:
        (y,) = session.run(None, {"x": np.ones((1, 3, 32, 32), np.float32)})
    assert not y.any()


@pytest.mark.parametrize(
    "changed",
    [
        {"targets": TARGETS[::-1]},
        {"targets": (*TARGETS, "null -latency_us=1 -ops=Tanh")},
        {"tolerance": 1e-2},
        {"seed": 1},
        {"bans": [f"Relu={SLOW}"]},
        {"threads": 1},
        {"plans": 2},
        {"time_limit_s": 2.5},
        {"fresh": True},
    ],
    ids=str,
)
def test_whatever_matters_is_searched_anew(tuner: Tuner, changed: dict[str, Any]) -> None:
    tuner.tune(**changed)
    assert tuner.searched


def test_a_shorter_search_is_spared_too_and_a_longer_one_is_not(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path)
    tuner.tune()
    tuner.tune(time_limit_s=1.0)
    assert not tuner.searched
    tuner.tune(time_limit_s=3.0)
    assert tuner.searched
    tuner.tune(time_limit_s=3.0)
    assert not tuner.searched


def test_other_weights_and_other_samples_are_another_model(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path)
    tuner.tune()
    for number, seed in enumerate((1, 2)):
        inputs = tmp_path / f"{number}.npz"
        rng = np.random.default_rng(seed)
        np.savez(inputs, x=rng.standard_normal((2, 1, 3, 32, 32), np.float32))
        tuner.tune(inputs=inputs)
        assert tuner.searched
        tuner.tune(inputs=inputs)
        assert not tuner.searched
    tuner.model.write_bytes(zero_model(seed=1))
    tuner.tune()
    assert tuner.searched


def test_what_takes_no_search_is_timed_each_time(tuner: Tuner) -> None:
    targets = ("null -latency_us=5",)
    for _ in range(2):
        tuner.tune(targets, strategy="single")
        assert tuner.searched


def test_forgotten_costs_are_measured_anew(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path)
    tuner.tune()
    database = CostDatabase(tuner.url)
    assert database.forget(CostFilter(backend="null")) > 0
    database.close()
    again = tuner.tune()
    assert again.report["candidates"]["measured"] > 0 and again.report["known_since"] is None


def test_a_result_is_not_lost_where_it_cannot_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DatabaseUnavailableError("disk full")

    tuner = Tuner(tmp_path)
    monkeypatch.setattr(TuningStore, "keep", full)
    assert tuner.tune().path.exists()
    assert any("could not be remembered: disk full" in event.message for event in tuner.events)

"""What a search found is found again in a moment, and only where nothing that matters is different."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from benchmarks.support.zero_model import SLOW, TARGETS, best_plan, zero_model
from collage.artifact.emit import verify_plan
from collage.artifact.pareto_point import write_pareto_point
from collage.cost_db.costs.claims import Claims
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import DatabaseUnavailableError
from collage.cost_db.tunings import TuningRecord, TuningStore
from collage.events import Event
from collage.partitioner.errors import CancelledError, NoPlanError
from tests.service.conftest import small_model

pytestmark = pytest.mark.slow
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
            **{"time_limit_s": 2.0, "on_event": self.events.append, **options},
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
    new = {"candidates", "known_since", "seconds", "footprint"}
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


def test_tuning_without_a_search_is_timed_each_time(tuner: Tuner) -> None:
    targets = ("null -latency_us=5",)
    for _ in range(2):
        tuner.tune(targets, strategy="single")
        assert tuner.searched


def _claimed_by_another(monkeypatch: pytest.MonkeyPatch, lease_s: float = 3.0) -> list[str]:
    """Another owner claims each search just before this one does, for some seconds; the digests."""
    claim = CostDatabase.claim
    digests: list[str] = []

    def late(self: CostDatabase, keys: Sequence[CostKey | str], owner: str, own_s: float) -> Claims:
        if not digests and isinstance(keys[0], str):
            digests.extend(keys)
            assert claim(self, digests, "another", lease_s).granted
        return claim(self, keys, owner, own_s)

    monkeypatch.setattr(CostDatabase, "claim", late)
    return digests


def test_tuner_waiting_for_a_search_that_dies_searches_in_full_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner(tmp_path)
    digests = _claimed_by_another(monkeypatch)
    made = tuner.tune()
    assert digests
    assert [event.message for event in tuner.events if event.stage == "waiting"] == [
        "another tuner searches the same; its result will do"
    ]
    assert tuner.searched and made.report["known_since"] is None
    found = [(tuple(part["nodes"]), part["target"]) for part in made.plan["partitions"]]
    assert found == best_plan()
    assert made.report["seconds"]["total"] > 3.0


def test_waiting_for_a_search_ends_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner(tmp_path)
    assert not _claimed_by_another(monkeypatch, lease_s=600.0)
    made = tuner.tune(time_limit_s=1.0)
    waiting = [event.message for event in tuner.events if event.stage == "waiting"]
    assert waiting[1:] == ["the time is up, and another tuner still searches; not waiting for it"]
    assert made.report["known_since"] is None and made.report["partitions"]
    assert 5.0 < made.report["seconds"]["total"] < 1.25 * 1.0 + 10


def test_waiting_for_a_search_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner(tmp_path)
    _claimed_by_another(monkeypatch)
    cancel = threading.Event()

    def listen(event: Event) -> None:
        if event.stage == "waiting":
            cancel.set()

    begin = time.monotonic()
    with pytest.raises(CancelledError, match="another tuner"):
        tuner.tune(cancel=cancel, on_event=listen)
    assert time.monotonic() - begin < 2.5


def test_forgotten_costs_are_measured_anew(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path)
    tuner.tune()
    database = CostDatabase(tuner.url)
    assert database.forget(CostFilter(backend="null")) > 0
    database.close()
    again = tuner.tune()
    assert again.report["candidates"]["measured"] > 0 and again.report["known_since"] is None


def test_a_damaged_record_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Tuner(tmp_path)
    tuner.tune()
    find = TuningStore.find

    def damaged(store: TuningStore, digest: str) -> TuningRecord | None:
        record = find(store, digest)
        return None if record is None else replace(record, plan="{}")

    monkeypatch.setattr(TuningStore, "find", damaged)
    assert tuner.tune().report["known_since"] is None
    assert any(
        "the known plan fails, so it is searched anew" in event.message for event in tuner.events
    )


def test_a_known_plan_that_fails_now_is_searched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition is rewritten first, so that what was made for the failed one must not be in the way."""
    tuner = Tuner(tmp_path)
    tuner.model.write_bytes(small_model())
    int8 = ("openvino -quant=static_int8",)
    first = tuner.tune(int8, tolerance=1.0)
    failing = [NoPlanError("the plan failed when it was compiled once more: it is stated")]

    def verify(**given: Any) -> Any:
        if failing:
            raise failing.pop()
        return verify_plan(**given)

    monkeypatch.setattr("collage.artifact.emit.verify_plan", verify)
    again = tuner.tune(int8, tolerance=1.0)
    assert not failing
    assert any("it is stated" in event.message for event in tuner.events)
    assert again.report["known_since"] is None
    assert again.report["partitions"][0]["prepared"]
    assert again.report["partitions"][0]["nodes"] == first.report["partitions"][0]["nodes"]
    assert tuner.tune(int8, tolerance=1.0).report["known_since"] is not None
    with collage.load(again.path) as session:
        assert session.run(None, {"x": np.ones((1, 3, 16, 16), np.float32)})[0].sum() == pytest.approx(
            1, abs=0.01
        )


def test_the_front_of_a_known_tuning_can_be_taken(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path)
    tuner.model.write_bytes(small_model())
    targets = ("simulated -precision=f32 -speedup=0.15", "simulated -precision=bf16 -speedup=1")
    # Time enough on a busy machine, too: it ends as soon as nothing is left to try.
    options = {"tolerance": 0.1, "pareto": True, "time_limit_s": 20.0}
    points = [tuner.tune(targets, **options).report["front"] for _ in range(2)]
    assert not tuner.searched
    assert points[0] == points[1] and len(points[1]) >= 2
    taken = write_pareto_point(tuner.folder / "zero.collage.onnx", 0, tmp_path / "exact.onnx")
    assert taken.report["max_relative_error"] == points[0][0]["max_relative_error"]


def test_a_result_is_not_lost_where_it_cannot_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DatabaseUnavailableError("disk full")

    tuner = Tuner(tmp_path)
    monkeypatch.setattr(TuningStore, "keep", full)
    assert tuner.tune().path.exists()
    assert any("could not be remembered: disk full" in event.message for event in tuner.events)

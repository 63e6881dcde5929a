"""Costs that several tuners need, and what a time limit leaves of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage.backends.measurement.request import Measurement, MeasureRequest
from collage.backends.numerics.seeded import seeded_inputs
from collage.cost_db.database import CostDatabase
from collage.costs.measured_costs import CostSettings, MeasuredCosts
from collage.events import Event
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate
from collage.partitioner.cost import Measured, Unknown
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runner import Runner

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[SIZE] x) => (float[SIZE] y) { a = Relu(x)  y = Exp(a) }"""
TARGET = Target.parse("null -latency_us=5")


class StatedRunner(Runner):
    """Measures what somebody stated, cut short where a limit is below a second."""

    def __init__(self, latency_us: float = 5.0) -> None:
        self.latency_us = latency_us
        self.limits_s: list[float | None] = []

    def measure(self, request: MeasureRequest, cancel: threading.Event | None) -> Measurement:
        self.limits_s.append(request.limit_s)
        us, cut_short = self.latency_us, (request.limit_s or 1.0) < 1.0
        return Measurement(Measured(us), (us,), error=0.0, cut_short=cut_short)


class Tuner:
    """One run of one of several tuners, which share a database."""

    def __init__(self, model: Model, folder: Path, database: CostDatabase) -> None:
        inputs = [model.index.values[name] for name in model.index.inputs]
        self.runner, self.said = StatedRunner(), list[str]()
        self.costs = MeasuredCosts(
            model,
            RegionFiles(model, folder / "regions"),
            Reference(model, [seeded_inputs(inputs, 0)], folder / "reference"),
            database,
            CostSettings(threads=1),
            self.runner,
            self._listen,
        )
        self.whole = Candidate(model.index.all_nodes, TARGET)

    def _listen(self, event: Event) -> None:
        self.said.append(event.message)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CostDatabase]:
    made = CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")
    yield made
    made.close()


@pytest.fixture
def tuner(tmp_path: Path, database: CostDatabase) -> Callable[[str], Tuner]:
    model = _model(tmp_path, 8)
    return lambda name: Tuner(model, tmp_path / name, database)


def _model(folder: Path, size: int) -> Model:
    path = folder / f"{size}.onnx"
    onnx.save(onnx.parser.parse_model(TEXT.replace("SIZE", str(size))), path)
    return Model.open(normalize(path, folder / f"normalized {size}", {}).path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stops", "limit_s", "least_s"), [(True, None, 0.0), (True, 60.0, 0.0), (False, 0.2, 0.4)]
)
def test_another_tuner_is_waited_for_only_while_there_is_time(
    tuner: Callable[[str], Tuner],
    database: CostDatabase,
    stops: bool,
    limit_s: float | None,
    least_s: float,
) -> None:
    ours = tuner("ours")
    assert database.claim([ours.costs.key(ours.whole)], "another", 600.0).granted
    begin = time.monotonic()
    ours.costs.measure([ours.whole], stop=lambda: stops, limit_s=limit_s)
    assert least_s <= time.monotonic() - begin < least_s + 10
    assert isinstance(ours.costs.cost(ours.whole), Unknown) and not ours.runner.limits_s
    assert ours.said == ["1 of these costs are left for later: another tuner measures them"]


@pytest.mark.slow
def test_what_another_tuner_measures_is_waited_for(
    tuner: Callable[[str], Tuner], database: CostDatabase
) -> None:
    """Its lease ends, so the cost is measured here."""
    ours = tuner("ours")
    assert database.claim([ours.costs.key(ours.whole)], "another", 0.3).granted
    ours.costs.measure([ours.whole])
    assert isinstance(ours.costs.cost(ours.whole), Measured) and not ours.said[1:]


def test_a_measurement_cut_short_is_for_its_own_run_only(
    tuner: Callable[[str], Tuner], database: CostDatabase
) -> None:
    hasty, patient, later = tuner("hasty"), tuner("patient"), tuner("later")
    for _ in range(2):
        hasty.costs.measure([hasty.whole], limit_s=0.5)
    assert hasty.runner.limits_s == [0.5]
    assert isinstance(hasty.costs.cost(hasty.whole), Measured)
    digest = hasty.costs.key(hasty.whole).digest
    assert not database.look_up([digest])
    # Its claim does not keep others waiting.
    patient.costs.measure([patient.whole], stop=lambda: bool(patient.said), limit_s=60.0)
    assert patient.runner.limits_s == [60.0] and digest in database.look_up([digest])
    later.costs.measure([later.whole])
    assert not later.runner.limits_s and later.costs.counts.from_cache == 1


def test_costs_at_other_sizes_are_expected_and_never_taken_for_costs(
    tmp_path: Path, database: CostDatabase
) -> None:
    at = {
        size: Tuner(_model(tmp_path, size), tmp_path / str(size), database) for size in (8, 16, 24, 32)
    }
    asked = at.pop(24)
    region = asked.whole.nodes, TARGET
    for size, tuner in at.items():
        assert asked.costs.expected_us([asked.whole]) == {}
        tuner.runner.latency_us = 100.0 + size
        tuner.costs.measure([tuner.whole])
    assert asked.costs.expected_us([asked.whole]) == pytest.approx({region: 124.0})
    assert isinstance(asked.costs.cost(asked.whole), Unknown)
    assert asked.costs.row(asked.whole) is None and not asked.runner.limits_s
    asked.costs.measure([asked.whole])
    assert asked.costs.cost(asked.whole) == Measured(5.0, 0.0, 1)
    assert asked.costs.expected_us([asked.whole]) == {}


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ("", ""),
        ("-memory=normal -power=normal", ""),
        ("-precision=int8", ""),
        ("-winograd=large -threads=1", ""),
        ("-memory=high", "; -memory (2)"),
        ("-power=low", "; -power (2)"),
        ("-memory=low -power=high", "; -memory (2); -power (2)"),
    ],
)
def test_costs_of_modes_that_once_never_reached_mnn_have_keys_of_their_own(
    tuner: Callable[[str], Tuner], options: str, more: str
) -> None:
    ours = tuner("ours")
    key = ours.costs.key(Candidate(ours.whole.nodes, Target.parse(f"mnn {options}".strip())))
    assert key.backend_version == version("MNN") + more

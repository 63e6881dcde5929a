"""Requests are joined only where each row of the outputs depends on its own row of the inputs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from benchmarks.load_time import make_artifact
from collage.backends.machine.process_policy import default_threads
from collage.deploy import runner
from collage.deploy.package import write_package
from collage.partitioner.candidate import Candidate, Instances, Plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.serving.app import Serving, create_app
from collage.serving.batches import Rows, prove_rows
from collage.serving.engine import Engine, open_engine
from collage.serving.errors import RequestError
from collage.serving.metrics import Metrics
from collage.serving.scheduler import Scheduler
from collage.serving.server import ServingOptions, _opened
from tests.collage.serving.conftest import ROWS, artifact_of

# Each row loses the mean of all rows.
MIXED = """<ir_version: 8, opset_import: ["" : 20]>
    mixed (float[{batch}, 4] x) => (float[{batch}, 4] y)
    <int64[1] axis = {{0}}> {{ m = ReduceMean(x, axis) y = Sub(x, m) }}"""
# A row of ids for which there is no table entry makes the whole call fail.
TABLE = """<ir_version: 8, opset_import: ["" : 20]>
    table (int64[N, 2] ids) => (float[N, 2] y)
    <float[3] t = {10, 20, 30}> { y = Gather(t, ids) }"""


class Counting:
    """A session of ONNX Runtime that counts its calls, and waits while it is told to."""

    def __init__(self, text: str) -> None:
        model = onnx.parser.parse_model(text).SerializeToString()
        self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.get_inputs, self.get_outputs = self._session.get_inputs, self._session.get_outputs
        self.rows: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.rows.append(len(next(iter(feed.values()))))
        self.go.wait(60)
        return list(self._session.run(names, feed))

    def close(self) -> None:
        pass


def _scheduler(
    session: Counting, rows: Rows | None, delay_s: float = 0.2, length: int = 64
) -> Scheduler:
    engine = Engine([session], "test")
    return Scheduler(engine, Metrics("m"), rows=rows, max_delay_s=delay_s, queue_length=length)


def _x(*rows: float) -> dict[str, np.ndarray]:
    return {"x": np.repeat(np.array(rows, np.float32)[:, None], 4, axis=1)}


@pytest.mark.parametrize(
    ("batch", "rows"), [("N", Rows(6, None)), ("8", Rows(6, 8)), ("4", Rows(4, 4))]
)
def test_rows_are_joined_for_free_and_fixed_batches(batch: str, rows: Rows) -> None:
    engine = Engine([Counting(ROWS.format(batch=batch))], "test")
    assert Rows.of(engine, 6) == rows
    prove_rows(engine, rows)


@pytest.mark.parametrize("batch", ["N", "8"])
def test_rows_that_depend_on_each_other_are_refused(batch: str) -> None:
    engine = Engine([Counting(MIXED.format(batch=batch))], "test")
    with pytest.raises(BadInputError, match=r"'y' of a row depends on the other rows.*leave out"):
        prove_rows(engine, Rows.of(engine, 4))


@pytest.mark.parametrize(
    "text",
    [
        ROWS.format(batch=1),
        '<ir_version: 8, opset_import: ["" : 20]> g (float[N] x, float[3] w) => (float[N] y) { y = Identity(x) }',
        '<ir_version: 8, opset_import: ["" : 20]> g (float x) => (float y) { y = Identity(x) }',
    ],
)
def test_shapes_that_have_no_batch_are_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="batches need one first dimension"):
        Rows.of(Engine([Counting(text)], "test"), 4)


def test_join_fills_up_a_fixed_batch() -> None:
    joined = Rows(8, 4).join([_x(1, 2), _x(3)])["x"]
    np.testing.assert_array_equal(joined[:, 0], [1, 2, 3, 3])
    assert len(Rows(8, None).join([_x(1, 2), _x(3)])["x"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["N", "8"])
def test_waiting_requests_become_one_call(batch: str) -> None:
    session = Counting(ROWS.format(batch=batch))
    rows = Rows.of(Engine([session], "test"), 4)
    scheduler = _scheduler(session, rows)
    session.go.clear()
    first = scheduler.submit(_x(0), ["y"])
    while not session.rows:  # the first call runs alone
        pass
    rest = [
        scheduler.submit(_x(*values), ["z", "y"]) for values in ((1.0,), (2.0, 3.0), (4.0,), (5.0,))
    ]
    session.go.set()
    wait([first, *rest], 30)
    assert first.result()[0].shape == (1, 4)
    for done, values in zip(rest, ((1.0,), (2.0, 3.0), (4.0,), (5.0,)), strict=True):
        z, y = done.result()
        np.testing.assert_allclose(z[:, 0], np.multiply(4, values), rtol=1e-5)
        np.testing.assert_allclose(y[:, 0], 3 * np.tanh(values), rtol=1e-5)
    # One, then four of at most four, then the last.
    assert session.rows == ([1, 4, 1] if batch == "N" else [8, 8, 8])
    assert scheduler.close(10)


def test_request_of_another_shape_starts_a_new_batch() -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]>
        g (float[N, L] x) => (float[N, L] y) { y = Add(x, x) }"""
    session = Counting(text)
    scheduler = _scheduler(session, Rows(8, None))
    made = [np.full((1, length), i, np.float32) for i, length in enumerate((2, 2, 3, 2))]
    done = [scheduler.submit({"x": x}, ["y"]) for x in made]
    for x, each in zip(made, done, strict=True):
        np.testing.assert_array_equal(each.result(30)[0], x + x)
    assert session.rows == [2, 1, 1]
    assert scheduler.close(10)


def test_one_wrong_request_does_not_spoil_its_batch() -> None:
    scheduler = _scheduler(Counting(TABLE), Rows(8, None))
    done = [scheduler.submit({"ids": np.array([ids])}, ["y"]) for ids in ([0, 1], [7, 0], [2, 2])]
    np.testing.assert_array_equal(done[0].result(30)[0], [[10, 20]])
    np.testing.assert_array_equal(done[2].result(30)[0], [[30, 30]])
    with pytest.raises(RequestError, match="could not be run") as caught:
        done[1].result(30)
    assert caught.value.status == 500
    assert scheduler.close(10)


def test_inputs_of_different_rows_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]>
        g (float[N, 2] a, float[N, 2] b) => (float[N, 2] y) { y = Add(a, b) }"""
    scheduler = _scheduler(Counting(text), Rows(8, None))
    feed = {"a": np.zeros((2, 2), np.float32), "b": np.zeros((3, 2), np.float32)}
    with pytest.raises(RequestError, match="the same number of rows"):
        scheduler.submit(feed, ["y"])
    assert scheduler.close(10)


def test_full_queue_refuses_with_a_time_to_wait() -> None:
    session = Counting(ROWS.format(batch="1"))
    scheduler = _scheduler(session, None, length=2)
    session.go.clear()
    done = [scheduler.submit(_x(0), ["y"])]
    while not session.rows:
        pass
    done += [scheduler.submit(_x(i), ["y"]) for i in (1, 2)]
    with pytest.raises(RequestError, match="2 requests wait already") as caught:
        scheduler.submit(_x(3), ["y"])
    assert caught.value.status == 429 and (caught.value.retry_after_s or 0) >= 1
    session.go.set()
    for i, each in enumerate(done):
        np.testing.assert_allclose(each.result(30)[0][0, 0], 3 * np.tanh(i), rtol=1e-5)
    assert scheduler.close(10)


def test_request_whose_client_left_is_not_computed() -> None:
    session = Counting(ROWS.format(batch="1"))
    scheduler = _scheduler(session, None)
    session.go.clear()
    first = scheduler.submit(_x(0), ["y"])
    while not session.rows:
        pass
    left, last = (scheduler.submit(_x(i), ["y"]) for i in (1, 2))
    assert left.cancel()
    session.go.set()
    first.result(30), last.result(30)
    assert len(session.rows) == 2
    assert scheduler.close(10)


def test_close_finishes_what_waits_and_refuses_more() -> None:
    session = Counting(ROWS.format(batch="1"))
    scheduler = _scheduler(session, None)
    session.go.clear()
    done = [scheduler.submit(_x(i), ["y"]) for i in range(5)]
    assert not scheduler.close(0.1)
    with pytest.raises(RequestError, match="the server ends") as caught:
        scheduler.submit(_x(0), ["y"])
    assert caught.value.status == 503
    session.go.set()
    assert scheduler.close(30)
    assert [round(float(each.result(0)[0][0, 0]), 3) for each in done] == [
        round(3 * float(np.tanh(i)), 3) for i in range(5)
    ]


@pytest.mark.slow
def test_many_threads_get_their_own_answers() -> None:
    sessions = [Counting(ROWS.format(batch="N")) for _ in range(3)]
    engine = Engine(sessions, "test")
    rows = Rows.of(engine, 8)
    metrics = Metrics("m")
    scheduler = Scheduler(engine, metrics, rows=rows, max_delay_s=0.001, queue_length=1000)

    def ask(i: int) -> bool:
        values = [float(i), float(-i)][: 1 + i % 2]
        z, y = scheduler.submit(_x(*values), ["z", "y"]).result(60)
        return np.allclose(z[:, 0], np.multiply(4, values)) and y.shape == (len(values), 4)

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(ask, range(2000)))
    assert scheduler.close(10)
    assert all(session.rows for session in sessions)
    (stat,) = metrics.statistics("1")["model_stats"]
    assert stat["inference_count"] == 3000 == sum(sum(session.rows) for session in sessions)
    assert stat["execution_count"] < 2000  # some were joined


TOLD = ServingOptions(
    host="",
    port=0,
    instances=None,
    threads=None,
    max_batch_size=None,
    max_delay_ms=20,
    queue=64,
    max_request_mb=1,
    name=None,
    fallback=False,
)


def _tuned_for_rows(folder: Path) -> Path:
    """An artifact whose calls compute eight requests, and whose instances have one thread."""
    onnx.save(onnx.parser.parse_model(ROWS.format(batch=8)), folder / "source.onnx")
    normalize(folder / "source.onnx", folder, {})
    model = Model.open(folder / "model.onnx")
    part = Candidate(model.index.all_nodes, Target.parse("onnxruntime"))
    plan = Plan((part,), instances=Instances(1, 1, 1, rows=8))
    return make_artifact(model, plan, folder / "rows.collage.onnx")


def _check_rows(serving: Serving) -> None:
    cores = default_threads()
    assert (serving.engine.instances, serving.engine.threads) == (cores, 1)
    asked = [serving.scheduler.submit(_x(float(i)), ["y"]) for i in range(12)]
    for i, each in enumerate(asked):
        np.testing.assert_allclose(each.result(60)[0], 3 * np.tanh(_x(float(i))["x"]), rtol=1e-5)
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5, -1, 2, 0]}

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(serving))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.post(f"/v2/models/{serving.name}/infer", json={"inputs": [x]})

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"][0]["shape"] == [1, 4]
    assert serving.scheduler.close(60)
    serving.engine.close()


def test_artifact_that_was_tuned_for_rows_is_served_with_them(tmp_path: Path) -> None:
    serving = _opened(_tuned_for_rows(tmp_path), TOLD)
    assert serving.rows == Rows(8, None)
    with pytest.raises(BadInputError, match="calls of 8 rows; give --max-batch-size 8 or less"):
        Rows.of(serving.engine, 9)
    _check_rows(serving)


@pytest.mark.slow
def test_package_of_what_was_tuned_for_rows_is_served_with_them(tmp_path: Path) -> None:
    package = write_package(_tuned_for_rows(tmp_path), tmp_path / "package").folder
    serving = _opened(package, TOLD)
    assert serving.rows == Rows(8, 8) and "variant plain" not in serving.engine.about
    _check_rows(serving)
    two = _opened(package, replace(TOLD, instances=2))
    assert two.engine.instances == 2
    assert two.scheduler.close(60)
    two.engine.close()


@pytest.mark.slow
def test_threads_that_were_tuned_hold_for_a_package(tmp_path: Path) -> None:
    artifact = _tuned_for_rows(tmp_path)
    for threads, wanted in ((None, 1), (2, 2)):
        with runner.Session(write_package(artifact, tmp_path / f"{wanted}", threads).folder) as session:
            assert session.threads == wanted
            assert [node.shape for node in session.get_inputs()] == [[8, 4]]


def test_calls_that_cannot_be_run_are_told() -> None:
    engine = Engine([Counting(TABLE)], "test")  # ids of the sample are beyond the table
    with pytest.raises(BadInputError, match=r"a call of 4 rows cannot be run: .*a smaller --max-batch"):
        prove_rows(engine, Rows.of(engine, 4))
    known = Engine([Counting(TABLE)], "test", bounds={"ids": 3})
    prove_rows(known, Rows.of(known, 4))


@pytest.mark.slow
def test_ids_of_a_package_stay_within_its_table(tmp_path: Path) -> None:
    artifact = artifact_of(TABLE.replace("N", "4"), tmp_path / "artifact", "table")
    engine = open_engine(write_package(artifact, tmp_path / "package", 1).folder, None)
    assert engine.bounds == {"ids": 3}
    prove_rows(engine, Rows.of(engine, 4))
    engine.close()

"""The application in this process: clients that are slow or leave, and sizes of free dimensions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.types import ASGIApp

from collage.partitioner.tensor import TensorSpec
from collage.serving import app as application
from collage.serving.app import Serving, create_app
from collage.serving.batches import Rows, prove_rows
from collage.serving.engine import Engine
from collage.serving.metrics import Metrics
from collage.serving.scheduler import Scheduler
from tests.collage.serving.conftest import ROWS
from tests.collage.serving.test_batches import Counting

GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5, -1, 2, 0]}]}
INFER = "/v2/models/rows/infer"


def _app(session: Counting, rows: Rows | None = None) -> tuple[ASGIApp, Serving]:
    engine, metrics = Engine([session], "test"), Metrics("rows")
    scheduler = Scheduler(engine, metrics, rows=rows, max_delay_s=0.0, queue_length=8)
    serving = Serving("rows", engine, scheduler, metrics, rows, 1 << 20)
    return create_app(serving), serving


def _client(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def test_slow_body_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_SLOWEST_BODY_S", 0.2)
    app, serving = _app(Counting(ROWS.format(batch=1)))

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" "
            await asyncio.sleep(0.1)

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        async with _client(app) as http:
            return await http.post(INFER, content=drip()), await http.post(INFER, json=GOOD)

    slow, good = asyncio.run(ask())
    assert slow.status_code == 408 and "the body took longer" in slow.json()["error"]
    assert good.status_code == 200 and serving.open_requests == 0
    assert serving.scheduler.close(10)


@pytest.mark.slow
def test_client_that_leaves_gives_up_its_place() -> None:
    session = Counting(ROWS.format(batch=1))
    app, serving = _app(session)
    session.go.clear()
    body = json.dumps(GOOD).encode()

    async def leave() -> list[Any]:
        """Sends a request, and is gone as soon as it waits."""
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await asyncio.sleep(0.2)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": INFER, "headers": [], "query_string": b""}
        await app(scope, receive, send)
        return sent

    async def ask() -> tuple[int, list[Any], int]:
        async with _client(app) as http:
            first = asyncio.ensure_future(http.post(INFER, json=GOOD))
            while not session.rows:
                await asyncio.sleep(0.01)
            left = await leave()
            last = asyncio.ensure_future(http.post(INFER, json=GOOD))
            await asyncio.sleep(0.05)
            session.go.set()
            return (await first).status_code, left, (await last).status_code

    first, left, last = asyncio.run(ask())
    assert (first, left[0]["status"], last) == (200, 499, 200)
    assert len(session.rows) == 2
    assert serving.scheduler.close(10)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"inputs": [{"name": "\\ud800"}]}', "there is no input"),
        (b'{"inputs": [{"name": "x", "datatype": "\\ud800"}]}', "'x' must be FP32, not \ud800"),
    ],
)
def test_half_of_a_character_is_told_as_any_other_text(body: bytes, message: str) -> None:
    app, serving = _app(Counting(ROWS.format(batch=1)))

    async def ask() -> httpx.Response:
        async with _client(app) as http:
            return await http.post(INFER, content=body)

    answer = asyncio.run(ask())
    assert answer.status_code == 400 and message in answer.json()["error"]
    assert serving.scheduler.close(10)


@pytest.mark.parametrize(("rows", "aside"), [(1, False), (70_000, True)])
def test_long_tensors_are_read_and_written_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, rows: int, aside: bool
) -> None:
    app, serving = _app(Counting(ROWS.format(batch="N")))
    serving.max_request_bytes = 1 << 22
    threads: list[threading.Thread] = []
    for name in ("read_request", "write_response"):
        action = getattr(application, name)

        def noting(*given: Any, _action: Any = action, **named: Any) -> Any:
            threads.append(threading.current_thread())
            return _action(*given, **named)

        monkeypatch.setattr(application, name, noting)
    x = np.zeros((rows, 4), np.float32)
    parameters = {"binary_data_size": x.nbytes}
    inputs = [{"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": parameters}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()

    async def ask() -> httpx.Response:
        async with _client(app) as http:
            length = {"Inference-Header-Content-Length": str(len(head))}
            return await http.post(INFER, content=head + x.tobytes(), headers=length)

    assert asyncio.run(ask()).status_code == 200
    assert [thread is not threading.main_thread() for thread in threads] == [aside, aside]
    assert serving.scheduler.close(10)


def test_failure_of_the_model_tells_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Counting):
        def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            raise RuntimeError("a secret path")

    app, serving = _app(Broken(ROWS.format(batch=1)))

    async def ask() -> httpx.Response:
        async with _client(app) as http:
            return await http.post(INFER, json=GOOD)

    answer = asyncio.run(ask())
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["error"] == "the model could not be run; the server's log says why"
    assert "a secret path" in caplog.text
    assert serving.scheduler.close(10)


def test_free_dimensions_are_described_and_served() -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]>
        rows (float[N, length] x) => (float[N, length] y) { y = Add(x, x) }"""
    session = Counting(text)
    app, serving = _app(session, Rows(4, None))

    async def ask() -> tuple[Any, list[httpx.Response]]:
        async with _client(app) as http:
            described = (await http.get("/v2/models/rows")).json()
            answers = []
            for shape in ([1, 2], [3, 5], [9, 1], [1, 0], [0, 2]):
                data = [1.5] * (shape[0] * shape[1])
                tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
                answers.append(await http.post(INFER, json={"inputs": [tensor]}))
            return described, answers

    described, (*right, empty) = asyncio.run(ask())
    assert described["inputs"][0]["shape"] == described["outputs"][0]["shape"] == [-1, -1]
    shapes = [answer.json()["outputs"][0]["shape"] for answer in right]
    assert shapes == [[1, 2], [3, 5], [9, 1], [1, 0]]
    assert empty.status_code == 400 and "at least one row along axis 0" in empty.json()["error"]
    assert serving.scheduler.close(10)


def test_rows_are_proven_at_the_sizes_of_the_example() -> None:
    """This model takes no length but 3."""
    text = """<ir_version: 8, opset_import: ["" : 20]>
        rows (float[N, length] x) => (float[N, length] y)
        <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"""
    session = Counting(text)
    engine = Engine([session], "test", example=[TensorSpec("x", "float32", (1, 3))])
    prove_rows(engine, Rows.of(engine, 2))
    assert session.rows == [2, 1, 1]

"""Reading stored files for the pages: nobody else waits, and what failed is not tried again and again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from collage.backends.sandbox.limits import FailureKind
from collage.backends.sandbox.run import ChildFailed
from collage.service.storage import graph_cache
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.graph_cache import GraphCache
from collage.service.storage.spool import Spool
from collage.service.storage.turns import _MOST_WAITING_EACH, TooManyWaitingError
from tests.service.conftest import RunningServer, StartServer, post_job

_MANY = 45  # more than there are threads for routes


def _model(server: RunningServer, content: bytes = b"model", **more: Any) -> str:
    return str(post_job(server, content, **more).json()["model_sha256"])


@contextlib.contextmanager
def _released(event: threading.Event) -> Iterator[None]:
    """Sets the event at the end, so that nobody waits for a test that has failed."""
    try:
        yield
    finally:
        event.set()


def _until_asked(server: RunningServer, files: int) -> None:
    deadline = time.monotonic() + 20
    while len(server.services.graphs._making) < files:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every trial of sizes waits for this event."""
    event = threading.Event()

    def settle(source: Path, dims: dict[str, Any], **limits: float) -> SimpleNamespace:
        assert event.wait(30)
        return SimpleNamespace(proposed={"batch": "1..8"})

    monkeypatch.setattr(graph_cache, "settle", settle)
    yield event
    event.set()


@pytest.mark.slow
def test_nobody_waits_for_another_ones_trials(server: RunningServer, held: threading.Event) -> None:
    path = f"/new/models/{_model(server)}/sizes"
    with ThreadPoolExecutor(_MANY) as threads, _released(held):
        asked = [threads.submit(server.http.get, path) for _ in range(_MANY)]
        _until_asked(server, 1)
        time.sleep(0.5)  # until the others have come, too
        assert server.http.get("/v1/jobs", timeout=5).status_code == 200
        assert server.http.get("/new", timeout=5).status_code == 200
        held.set()
        answers = [each.result() for each in asked]
    assert {answer.json()["proposed"]["batch"] for answer in answers} == {"1..8"}


@pytest.mark.slow
def test_a_caller_may_not_let_everything_wait(server: RunningServer, held: threading.Event) -> None:
    models = [_model(server, b"model %d" % number) for number in range(_MOST_WAITING_EACH + 1)]
    with ThreadPoolExecutor(len(models)) as threads, _released(held):
        asked = [threads.submit(server.http.get, f"/new/models/{model}/sizes") for model in models[:-1]]
        _until_asked(server, len(asked))
        refused = server.http.get(f"/new/models/{models[-1]}/sizes", timeout=20)
        held.set()
        assert {each.result().status_code for each in asked} == {200}
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "5"
    assert "try again" in refused.json()["detail"]


@pytest.mark.slow
def test_trials_of_one_token_leave_turns_to_others(start_server: StartServer) -> None:
    server = start_server(authentication="on")
    order: list[str] = []
    first = threading.Event()

    def settle(source: Path, dims: dict[str, Any], **limits: float) -> SimpleNamespace:
        order.append(source.read_text(encoding="utf-8").split()[0])
        assert first.wait(30)
        return SimpleNamespace(proposed={})

    def ask(owner: str, model: str) -> httpx.Response:
        return server.http.get(f"/new/models/{model}/sizes", headers=headers[owner])

    headers, models = {}, {}
    for owner in ("ann", "bob"):
        secret = server.services.tokens.create(owner, ["tune"])[1]
        headers[owner] = {"Authorization": f"Bearer {secret}"}
        contents = [f"{owner} {number}".encode() for number in range(3)]
        models[owner] = [_model(server, each, headers=headers[owner]) for each in contents]
    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(6) as threads, _released(first):
        patched.setattr(graph_cache, "settle", settle)
        asked = [threads.submit(ask, "ann", model) for model in models["ann"]]
        _until_asked(server, 3)
        asked.append(threads.submit(ask, "bob", models["bob"][0]))
        _until_asked(server, 4)
        first.set()
        assert {each.result().status_code for each in asked} == {200}
    assert order[:2] == ["ann", "bob"]


def test_who_asks_for_what_another_waits_for_has_its_own_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool")
    files = BlobFiles(f"file://{tmp_path}/blobs", spool.path)
    models = [files.keep_bytes(b"%d" % number).sha256 for number in range(_MOST_WAITING_EACH + 1)]
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def settle(source: Path, dims: dict[str, Any], **limits: float) -> SimpleNamespace:
        order.append(source.read_text(encoding="utf-8"))
        begun.set()
        assert go_on.wait(30)
        return SimpleNamespace(proposed={"model": source.read_text(encoding="utf-8")})

    monkeypatch.setattr(graph_cache, "settle", settle)

    async def ask() -> None:
        graphs = GraphCache(files, spool)
        waiting = [asyncio.create_task(graphs.sizes("ann", model)) for model in models[:-1]]
        assert await asyncio.to_thread(begun.wait, 30)
        # Who waits for all that it may is refused; another one that asks at the same time is not.
        refused, taken = (asyncio.create_task(graphs.sizes(who, models[-1])) for who in ("ann", "bob"))
        with pytest.raises(TooManyWaitingError):
            await refused
        joined = [asyncio.create_task(graphs.sizes(who, models[9])) for who in ("bob", "cid")]
        joined.append(asyncio.create_task(graphs.sizes("ann", models[-1])))
        await asyncio.sleep(0)
        go_on.set()
        answers = [await each for each in (*joined, taken)]
        assert [each["proposed"]["model"] for each in answers] == ["9", "9", "16", "16"]
        assert len(await asyncio.gather(*waiting)) == _MOST_WAITING_EACH
        assert not graphs._making and not graphs._triers._callers

    with _released(go_on):
        asyncio.run(ask())
    spool.close()
    assert order[0] == "0" and set(order[1:3]) == {"9", "16"} and len(order) == len(models)


@pytest.mark.slow
def test_a_model_that_fails_is_not_read_again_at_once(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(kind: FailureKind) -> Callable[..., None]:
        def run(*args: object, **limits: object) -> None:
            calls.append(kind)
            raise ChildFailed(kind, "it was ended")

        return run

    path = f"/new/models/{_model(server)}"
    monkeypatch.setattr(graph_cache, "run_in_child", fail("killed"))  # says nothing of the model
    assert [server.http.get(path).status_code for _ in range(2)] == [422, 422]
    monkeypatch.setattr(graph_cache, "run_in_child", fail("hang"))
    assert [server.http.get(path).status_code for _ in range(2)] == [422, 422]
    assert calls == ["killed", "killed", "hang"]


@pytest.mark.slow
def test_few_answers_are_kept(server: RunningServer, held: threading.Event) -> None:
    held.set()
    for number in range(graph_cache._KEPT + 3):
        assert server.http.get(f"/new/models/{_model(server, b'%d' % number)}/sizes").status_code == 200
    assert len(server.services.graphs._known) == graph_cache._KEPT

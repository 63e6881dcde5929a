"""Requests: answers come back to who asked, at once on several things, and an end that waits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from collage.runtime.requests import Requests
from collage.runtime.turns import ClosedError


class Thing:
    """Counts who uses it, and remembers what it was fed."""

    def __init__(self) -> None:
        self.value = 0

    def answer(self, value: int) -> int:
        self.value = value
        time.sleep(0.0005)
        return self.value


@pytest.mark.parametrize("things", [1, 2, 4])
def test_answers_of_many_threads_are_never_mixed_up(things: int) -> None:
    requests = Requests([Thing() for _ in range(things)])

    def work(client: int) -> bool:
        asked = [1000 * client + i for i in range(30)]
        waited = [requests.run(lambda thing, n=n: thing.answer(n)) for n in asked[:15]]  # type: ignore[misc]
        later = [requests.submit(lambda thing, n=n: thing.answer(n)) for n in asked[15:]]  # type: ignore[misc]
        return waited + [future.result(60) for future in later] == asked

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(12)))
    requests.close()


def test_as_many_calls_run_at_once_as_there_are_things() -> None:
    requests = Requests([Thing(), Thing(), Thing()])
    together = threading.Barrier(3)
    futures = [requests.submit(lambda thing: together.wait(30)) for _ in range(3)]
    assert sorted(future.result(30) for future in futures) == [0, 1, 2]


def test_a_waiting_thread_and_a_future_are_served_in_the_order_of_asking() -> None:
    requests = Requests([Thing()])
    go = threading.Event()
    requests.submit(lambda thing: go.wait(30))
    served: list[str] = []
    first = requests.submit(lambda thing: served.append("future"))
    thread = threading.Thread(target=requests.run, args=(lambda thing: served.append("thread"),))
    thread.start()
    while len(requests._turns._waiting) < 2:
        time.sleep(0.001)
    last = requests.submit(lambda thing: served.append("last future"))
    go.set()
    wait([first, last], 30)
    thread.join(30)
    assert served == ["future", "thread", "last future"]


def test_a_failing_call_gives_its_thing_back() -> None:
    requests = Requests([Thing()])

    def fail(thing: Thing) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        requests.run(fail)
    with pytest.raises(ValueError, match="wrong"):
        requests.submit(fail).result(30)
    assert requests.run(lambda thing: thing.answer(3)) == 3


def test_a_cancelled_request_is_not_computed() -> None:
    requests = Requests([Thing()])
    go, ran = threading.Event(), threading.Event()
    requests.submit(lambda thing: go.wait(30))
    cancelled = requests.submit(lambda thing: ran.set())
    assert cancelled.cancel()
    go.set()
    requests.close()
    assert not ran.is_set()


def test_closing_waits_and_may_be_done_where_a_future_ends() -> None:
    requests = Requests([Thing()])
    ended = threading.Event()

    def end(_: object) -> None:
        requests.close()
        ended.set()

    slow = requests.submit(lambda thing: time.sleep(0.05))
    last = requests.submit(lambda thing: thing.answer(7))
    last.add_done_callback(end)
    requests.close()
    assert slow.done() and last.result(0) == 7 and ended.wait(30)
    with pytest.raises(ClosedError):
        requests.submit(lambda thing: None)
    with pytest.raises(ClosedError):
        requests.run(lambda thing: None)


def test_an_interrupted_thread_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests([Thing()])
    go, ran = threading.Event(), threading.Event()
    requests.submit(lambda thing: go.wait(30))

    def interrupted(future: Future[object], timeout: float | None = None) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            requests.run(lambda thing: ran.set())
    go.set()
    requests.close()
    assert not ran.is_set()

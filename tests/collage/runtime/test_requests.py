"""Requests: answers come back to who asked, at once on several things, and an end that waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from collage.runtime.executor import Executor
from collage.runtime.joined import JoinedRequests, joined
from collage.runtime.pipeline import Pipeline
from collage.runtime.requests import Requests
from collage.runtime.turns import ClosedError

ROWS = 4


class Thing:
    """Counts who uses it, and remembers what it was fed."""

    def __init__(self, seconds: float = 0.0005) -> None:
        self.value, self.seconds = 0, seconds

    def answer(self, value: int) -> int:
        self.value = value
        time.sleep(self.seconds)
        return self.value


@pytest.mark.slow
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


class Doubling:
    """Stands for an executor that doubles rows, and remembers how each call began and how many it was fed."""

    def __init__(self, seconds: float = 0.0, fails: bool = False) -> None:
        self.seconds, self.fails = seconds, fails
        self.calls: list[np.ndarray] = []

    def feed(self, values: Mapping[str, np.ndarray]) -> None:
        self.calls.append(values["x"].copy())

    def run(self) -> None:
        time.sleep(self.seconds)
        if self.fails:
            raise ArithmeticError("it cannot")

    def value(self, name: str) -> np.ndarray:
        return self.calls[-1] * 2


def pool(*executors: Doubling) -> JoinedRequests:
    return JoinedRequests(cast("list[Executor]", list(executors)), ROWS)


def feed(*numbers: float) -> dict[str, np.ndarray]:
    return {"x": np.array([[number] for number in numbers])}


@pytest.mark.parametrize("instances", [1, 3])
def test_answers_of_many_clients_are_never_mixed_up(instances: int) -> None:
    requests = pool(*(Doubling(0.0005) for _ in range(instances)))

    def work(client: int) -> bool:
        asked = [[100.0 * client + i] * (i % ROWS + 1) for i in range(30)]
        waited = [requests.run(["y"], feed(*numbers))[0] for numbers in asked[:15]]
        later = [requests.submit(["y"], feed(*numbers)) for numbers in asked[15:]]
        answers = waited + [each.result(60)[0] for each in later]
        return all(
            np.array_equal(made, 2 * feed(*numbers)["x"])
            for made, numbers in zip(answers, asked, strict=True)
        )

    with ThreadPoolExecutor(8) as clients:
        assert all(clients.map(work, range(8)))
    requests.close()


@pytest.mark.slow
def test_requests_that_wait_fill_the_next_calls() -> None:
    executor = Doubling(0.1)
    requests = pool(executor)
    first = requests.submit(["y"], feed(0.0))
    while not executor.calls:
        time.sleep(0.001)
    later = [requests.submit(["y"], feed(1.0 + i)) for i in range(2 * ROWS)]
    assert [each.result(60)[0][0, 0] for each in (first, *later)] == [2.0 * i for i in range(9)]
    assert [list(call[:, 0]) for call in executor.calls[1:]] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    requests.close()


def test_oldest_request_waits_for_others_a_share_of_a_call() -> None:
    executor = Doubling()
    requests = pool(executor)
    requests._queue.delay_s = 60.0  # as after a long call
    begun = []
    for i in range(ROWS):
        begun.append(requests.submit(["y"], feed(float(i))))
        time.sleep(0.01)
    assert [each.result(30)[0][0, 0] for each in begun] == [0.0, 2.0, 4.0, 6.0]
    assert len(executor.calls) == 1
    requests.close()


def test_request_alone_does_not_wait_long_and_its_row_is_repeated() -> None:
    executor = Doubling()
    requests = pool(executor)
    begin = time.perf_counter()
    for _ in range(50):
        np.testing.assert_array_equal(requests.run(["y"], feed(3.0))[0], [[6.0]])
    assert time.perf_counter() - begin < 1.0
    np.testing.assert_array_equal(executor.calls[0], [[3.0]] * ROWS)
    requests.close()


def test_failure_of_a_call_is_each_request_s_and_the_next_call_runs() -> None:
    executor = Doubling(fails=True)
    requests = pool(executor)
    with pytest.raises(ArithmeticError, match="it cannot"):
        requests.run(["y"], feed(1.0))
    executor.fails = False
    np.testing.assert_array_equal(requests.run(["y"], feed(1.0))[0], [[2.0]])
    requests.close()


def test_close_answers_what_waits_and_refuses_what_comes_later() -> None:
    requests = pool(Doubling(0.05))
    waiting = [requests.submit(["y"], feed(i)) for i in range(3 * ROWS)]
    requests.close()
    assert [each.result(0)[0][0, 0] for each in waiting] == [2.0 * i for i in range(3 * ROWS)]
    with pytest.raises(ClosedError):
        requests.run(["y"], feed(1.0))
    requests.close()


def test_cancelled_request_is_not_computed() -> None:
    executor = Doubling(0.1)
    requests = pool(executor)
    first = requests.submit(["y"], feed(1.0))
    while not executor.calls:
        time.sleep(0.001)
    second = requests.submit(["y"], feed(2.0))
    assert second.cancel()
    requests.close()
    assert first.result(0)[0][0, 0] == 2.0 and len(executor.calls) == 1


def test_rows_are_joined_in_order() -> None:
    made = joined([feed(1.0, 2.0), feed(3.0)], ROWS)
    np.testing.assert_array_equal(made["x"], [[1.0], [2.0], [3.0], [3.0]])
    whole: dict[str, Any] = feed(1.0, 2.0, 3.0, 4.0)
    assert joined([whole], ROWS)["x"] is whole["x"]


def test_threads_end_with_close() -> None:
    before = threading.active_count()
    requests = pool(Doubling(), Doubling())
    assert threading.active_count() == before + 2
    requests.close()
    assert threading.active_count() == before


class Stepping:
    """Stands for an executor of three steps that count up; remembers when each step ran, over all executors."""

    def __init__(self, ran: list[tuple[int, float, float]], seconds: float = 0.0) -> None:
        self.ran, self.seconds, self.number = ran, seconds, 0.0
        self.fails = False

    def feed(self, values: Mapping[str, np.ndarray]) -> None:
        self.number = float(values["x"])

    def run_steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            begin = time.perf_counter()
            time.sleep(self.seconds)
            if self.fails and step == 2:
                raise ArithmeticError("it cannot")
            self.number += 10.0**step
            self.ran.append((step, begin, time.perf_counter()))

    def output(self, name: str) -> np.ndarray:
        return np.array(self.number)


def pipeline(*executors: Stepping, stages: tuple[int, ...] = (1, 2)) -> Pipeline:
    return Pipeline(cast("list[Executor]", list(executors)), stages)


def number(value: float) -> dict[str, np.ndarray]:
    return {"x": np.array(value)}


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(3,), (1, 2), (1, 1, 1)])
def test_pipeline_answers_who_asked(stages: tuple[int, ...]) -> None:
    requests = pipeline(*(Stepping([], 0.0002) for _ in range(len(stages) + 1)), stages=stages)

    def work(client: int) -> bool:
        asked = [1000.0 * client + 1000_000 * i for i in range(20)]
        waited = [requests.run(["y"], number(n))[0] for n in asked[:10]]
        later = [requests.submit(["y"], number(n)) for n in asked[10:]]
        return [float(a) for a in (*waited, *(f.result(60)[0] for f in later))] == [
            n + 111 for n in asked
        ]

    with ThreadPoolExecutor(6) as clients:
        assert all(clients.map(work, range(6)))
    requests.close()
    requests.close()


@pytest.mark.slow
def test_stages_run_at_once_and_each_has_one_request_at_a_time() -> None:
    ran: list[tuple[int, float, float]] = []
    requests = pipeline(*(Stepping(ran, 0.05) for _ in range(3)))
    waiting = [requests.submit(["y"], number(0.0)) for _ in range(6)]
    wait(waiting)
    requests.close()
    spans = {step: sorted((b, e) for s, b, e in ran if s == step) for step in (0, 1, 2)}
    first, second = spans[0], sorted(spans[1] + spans[2])
    for stage in (first, second):
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(stage))
    assert sum(a < d and c < b for a, b in first for c, d in second) >= 4


def test_failure_in_a_stage_is_the_request_s_and_the_next_one_runs() -> None:
    executor = Stepping([])
    requests = pipeline(executor)
    executor.fails = True
    with pytest.raises(ArithmeticError, match="it cannot"):
        requests.run(["y"], number(1.0))
    executor.fails = False
    assert requests.run(["y"], number(1.0))[0] == 112.0
    requests.close()
    with pytest.raises(ClosedError):
        requests.run(["y"], number(1.0))


def _calls(kind: str) -> tuple[Callable[[], Future[Any]], Callable[[], Any], Callable[[], None]]:
    """To ask, to ask and wait, and to close, for one request at a time of each kind."""
    if kind == "plain":
        requests, call = Requests([Thing(0.05)]), partial(Thing.answer, value=1)
        return lambda: requests.submit(call), lambda: requests.run(call), requests.close
    made = pool(Doubling(0.05)) if kind == "rows" else pipeline(Stepping([], 0.02))
    given = ["y"], feed(1.0) if kind == "rows" else number(1.0)
    return lambda: made.submit(*given), lambda: made.run(*given), made.close


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "rows", "pipeline"])
@pytest.mark.parametrize("waiting", [0, 2 * ROWS])
def test_callback_of_a_future_may_ask_and_close(kind: str, waiting: int) -> None:
    ask, run, close = _calls(kind)
    asked, ended = threading.Event(), threading.Event()

    def end(_: object) -> None:
        run()
        asked.set()
        close()
        ended.set()

    first = ask()
    first.add_done_callback(end)
    later = [ask() for _ in range(waiting)]
    assert asked.wait(20), "the callback waits for itself"
    assert ended.wait(20), "the callback waits for requests that wait for it"
    assert all(each.done() for each in (first, *later))
    with pytest.raises(ClosedError):
        ask()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "rows", "pipeline"])
def test_close_waits_for_callbacks_and_one_that_fails_is_told(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask, _, close = _calls(kind)
    made: list[int] = []

    def note(number: int, _: object) -> None:
        time.sleep(0.02)
        made.append(number)
        raise ValueError(f"callback {number}")

    futures = [ask() for _ in range(3)]
    for i, future in enumerate(futures):
        future.add_done_callback(partial(note, i))
    close()
    assert made == [0, 1, 2] and "callback 2" in caplog.text
    # Here a future is done already, and nothing computes in this thread.
    futures[0].add_done_callback(lambda _: made.append(3))
    assert made[-1] == 3

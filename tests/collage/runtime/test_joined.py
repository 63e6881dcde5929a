"""Requests of few rows joined to calls: answers come back to who asked, calls fill up, and an end that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from collage.runtime.executor import Executor
from collage.runtime.joined import JoinedRequests, joined
from collage.runtime.turns import ClosedError

ROWS = 4


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


def test_calls_are_full_where_as_many_clients_ask_as_there_are_rows() -> None:
    executor = Doubling(0.02)
    requests = pool(executor)

    def work(client: int) -> None:
        for _ in range(12):
            requests.run(["y"], feed(client))

    with ThreadPoolExecutor(ROWS) as clients:
        list(clients.map(work, range(ROWS)))
    requests.close()
    # The first call has not waited for the others, and a thread may come late on a busy machine.
    assert len(executor.calls) <= 20
    assert all(len(call) == ROWS for call in executor.calls)


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

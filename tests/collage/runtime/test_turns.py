"""Turns: who asks first gets first, a thing has one asker, an end waits; joined requests fail alone."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.partitioner.tensor import TensorSpec
from collage.runtime.executor import Executor
from collage.runtime.joined import JoinedRequests
from collage.runtime.step import Step
from collage.runtime.turns import ClosedError, Turns
from tests.collage.runtime.test_executor import NumpyExecutable


@given(things=st.integers(1, 4), steps=st.lists(st.booleans(), max_size=60))
def test_those_who_wait_are_served_in_the_order_in_which_they_came(
    things: int, steps: list[bool]
) -> None:
    turns = Turns(range(things))
    held: list[int] = []
    served: list[int] = []
    asked = 0
    for asks in steps:
        if asks:
            turns.ask(lambda thing, asker=asked: (served.append(asker), held.append(thing)))  # type: ignore[misc]
            asked += 1
        elif held:
            turns.give_back(held.pop(0))
        assert served == list(range(len(served))) and len(set(held)) == len(held) <= things
        assert len(held) == things or len(served) == asked


def test_nobody_passes_those_who_wait() -> None:
    turns = Turns(["only"])
    assert turns.free() == "only" and turns.free() is None
    held: list[str] = []
    turns.ask(held.append)
    turns.give_back("only")
    assert held == ["only"] and turns.free() is None
    turns.give_back("only")
    assert turns.free() == "only"


def test_a_thing_is_with_one_asker_at_a_time() -> None:
    turns = Turns(list(range(3)))
    users, most = [0, 0, 0], [0, 0, 0]
    chance = random.Random(0)
    pauses_s = [chance.random() / 2000 for _ in range(50)]
    done = threading.Semaphore(0)

    def use(pause_s: float) -> Callable[[int], None]:
        def given_to(thing: int) -> None:
            users[thing] += 1
            most[thing] = max(most[thing], users[thing])

            def end() -> None:
                users[thing] -= 1
                turns.give_back(thing)
                done.release()

            threading.Timer(pause_s, end).start()

        return given_to

    for pause_s in pauses_s:
        turns.ask(use(pause_s))
    for _ in pauses_s:
        assert done.acquire(timeout=30)
    assert most == [1, 1, 1]


def test_closing_waits_for_those_who_asked_before() -> None:
    turns = Turns(["only"])
    held = turns.free()
    assert held is not None
    served = threading.Event()

    def later(thing: str) -> None:
        served.set()
        threading.Timer(0.05, turns.give_back, [thing]).start()

    turns.ask(later)
    closing = threading.Thread(target=turns.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    with pytest.raises(ClosedError):
        turns.free()
    with pytest.raises(ClosedError):
        turns.ask(later)
    turns.give_back(held)
    closing.join(10)
    assert served.is_set() and not closing.is_alive()
    turns.close()


AT_END = """
import time
from collage.runtime.requests import Requests
requests = Requests([1])
first, second = (requests.submit(lambda thing: time.sleep(0.2)) for _ in range(2))
first.add_done_callback(lambda _: (requests.run(bool), requests.close(), print(second.done())))
"""


@pytest.mark.slow
def test_callbacks_are_made_while_python_ends() -> None:
    words = [sys.executable, "-c", AT_END]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_one_wrong_request_does_not_spoil_those_it_is_joined_with() -> None:
    table, entered, go = np.array([10, 20, 30], np.float32), threading.Event(), threading.Event()

    def look_up(ids: np.ndarray) -> np.ndarray:
        entered.set()
        go.wait(60)
        return table[ids]

    ids, y = TensorSpec("ids", "int64", (4, 1)), TensorSpec("y", "float32", (4, 1))
    executor = Executor([Step(NumpyExecutable(look_up), (ids,), (y,))], [ids], ["y"])
    executor.bind()
    requests = JoinedRequests([executor], 4)
    first = requests.submit(["y"], {"ids": np.array([[0]])})
    assert entered.wait(60)
    asked = [requests.submit(["y"], {"ids": np.array([[i]])}) for i in (1, 7, 2)]
    go.set()
    assert [first.result(60)[0].tolist(), asked[0].result(60)[0].tolist()] == [[[10]], [[20]]]
    with pytest.raises(IndexError):
        asked[1].result(60)
    assert asked[2].result(60)[0].tolist() == [[30]]
    requests.close()
    executor.close()

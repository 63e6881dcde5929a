"""Turns: who asks first gets first, one thing is with one asker, and an end that waits."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from collage.runtime import turns as module
from collage.runtime.turns import ClosedError, Turns


@pytest.mark.parametrize("things", [1, 3])
def test_those_who_wait_are_served_in_the_order_in_which_they_came(things: int) -> None:
    turns = Turns(range(things))
    held = [turns.take() for _ in range(things)]
    served: list[int] = []
    for asker in range(20):
        turns.ask(lambda thing, asker=asker: (served.append(asker), held.append(thing)))  # type: ignore[misc]
    assert not served
    for _ in range(20):
        turns.give_back(held.pop(0))
    assert served == list(range(20))


def test_a_thread_that_waits_is_not_passed_by_a_later_one() -> None:
    turns = Turns(["only"])
    thing = turns.take()
    came: list[int] = []

    def work(asker: int) -> None:
        own = turns.take()
        came.append(asker)
        turns.give_back(own)

    with ThreadPoolExecutor(8) as pool:
        for asker in range(8):
            pool.submit(work, asker)
            while len(turns._waiting) <= asker:
                time.sleep(0.001)
        turns.give_back(thing)
    assert came == list(range(8))


def test_a_thing_is_with_one_asker_at_a_time() -> None:
    turns = Turns(list(range(3)))
    users = [0, 0, 0]
    most = [0, 0, 0]
    chance = random.Random(0)
    pauses_s = [chance.random() / 2000 for _ in range(50)]

    def work(_: int) -> None:
        for pause_s in pauses_s:
            thing = turns.take()
            users[thing] += 1
            most[thing] = max(most[thing], users[thing])
            time.sleep(pause_s)
            users[thing] -= 1
            turns.give_back(thing)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, range(10)))
    assert most == [1, 1, 1]


def test_an_interrupted_thread_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(["only"])
    held = turns.take()

    class Interrupt(BaseException):
        pass

    class Lock:
        def acquire(self) -> None:
            raise Interrupt

    class Turn(module._Turn[str]):
        def __init__(self) -> None:
            super().__init__()
            self.came = Lock()  # type: ignore[assignment]

    monkeypatch.setattr(module, "_Turn", Turn)
    with pytest.raises(Interrupt):
        turns.take()
    monkeypatch.undo()
    turns.give_back(held)
    assert turns.take() == "only"


def test_closing_waits_for_those_who_asked_before() -> None:
    turns = Turns(["only"])
    held = turns.take()
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
        turns.take()
    with pytest.raises(ClosedError):
        turns.ask(later)
    turns.give_back(held)
    closing.join(10)
    assert served.is_set() and not closing.is_alive()
    turns.close()

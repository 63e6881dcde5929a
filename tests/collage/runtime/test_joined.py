"""Requests that are joined to one call get their own answers, and their own errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from collage.partitioner.tensor import TensorSpec
from collage.runtime.executor import Executor
from collage.runtime.joined import JoinedRequests
from collage.runtime.step import Step
from tests.collage.runtime.test_executor import NumpyExecutable

IDS, Y = TensorSpec("ids", "int64", (4, 1)), TensorSpec("y", "float32", (4, 1))


def test_one_wrong_request_does_not_spoil_those_it_is_joined_with() -> None:
    table, entered, go = np.array([10, 20, 30], np.float32), threading.Event(), threading.Event()

    def look_up(ids: np.ndarray) -> np.ndarray:
        entered.set()
        go.wait(60)
        return table[ids]

    step = Step(NumpyExecutable(look_up), (IDS,), (Y,))
    executor = Executor([step], [IDS], ["y"])
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

"""The executor on real numpy executables: order, reuse of memory, values of unknown shape."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from collage.backends.contract import Executable
from collage.partitioner.tensor import TensorSpec
from collage.runtime.executor import Executor
from collage.runtime.parallel import waves
from collage.runtime.step import Step

Array = np.ndarray


class NumpyExecutable(Executable):
    """Runs a numpy function; what it computes with is what it was bound to."""

    def __init__(self, function: Callable[..., Array]) -> None:
        self._function = function
        self._inputs: tuple[Array, ...] = ()
        self._output: Array | None = None
        self._results: tuple[Array, ...] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs, (self._output,) = tuple(inputs), outputs

    def run(self) -> None:
        made = self._function(*self._inputs)
        if self._output is not None:
            np.copyto(self._output, made)
            made = self._output
        self._results = (made,)

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def close(self) -> None:
        self._inputs = ()


class _NeedsBinding(NumpyExecutable):
    """As the runtimes' own, it cannot run before it is bound."""

    _is_bound = False

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        super().bind(inputs, outputs)
        self._is_bound = True

    def run(self) -> None:
        assert self._is_bound
        super().run()


def _spec(name: str, *shape: int | None) -> TensorSpec:
    return TensorSpec(name, "float32", shape)


def _diamond() -> Executor:
    x, a, b, c = _spec("x", 4), _spec("a", 4), _spec("b", 4), _spec("c", 4)
    steps = [
        Step(NumpyExecutable(lambda v: v + 1), (x,), (a,)),
        Step(NumpyExecutable(lambda v: v * 2), (a,), (b,)),
        Step(NumpyExecutable(lambda v, w: v + w), (a, b), (c,)),
    ]
    return Executor(steps, [x], ["c"])


def test_runs_in_order_on_bound_memory() -> None:
    executor = _diamond()
    executor.bind()
    executor.feed({"x": np.arange(4, dtype=np.float32)})
    executor.run()
    np.testing.assert_array_equal(executor.results()["c"], 3 * (np.arange(4) + 1))
    # Inputs stay fed, so a second run needs nothing and gives the same.
    executor.run()
    np.testing.assert_array_equal(executor.results()["c"], 3 * (np.arange(4) + 1))


def test_results_are_the_callers_own() -> None:
    executor = _diamond()
    executor.bind()
    executor.feed({"x": np.zeros(4, np.float32)})
    executor.run()
    first = executor.results()["c"]
    executor.feed({"x": np.ones(4, np.float32)})
    executor.run()
    np.testing.assert_array_equal(first, np.full(4, 3, np.float32))


def test_timed_run_gives_one_time_a_step() -> None:
    executor = _diamond()
    executor.bind()
    executor.feed({"x": np.zeros(4, np.float32)})
    times = executor.run_timed()
    assert len(times) == 3
    assert all(time > 0 for time in times)


def test_values_of_unknown_shape_pass_through() -> None:
    x, kept, y = _spec("x", 4), _spec("kept", None), _spec("y", None)
    steps = [
        Step(NumpyExecutable(lambda v: v[v > 0]), (x,), (kept,)),
        Step(NumpyExecutable(lambda v: v * 10), (kept,), (y,)),
    ]
    executor = Executor(steps, [x], ["y"])
    executor.bind()
    for values, wanted in (([1, -1, 2, 0], [10, 20]), ([-1, -1, -1, 5], [50])):
        executor.feed({"x": np.array(values, np.float32)})
        executor.run()
        np.testing.assert_array_equal(executor.results()["y"], np.array(wanted, np.float32))


def test_step_without_inputs_makes_a_value_of_unknown_shape() -> None:
    x, made, y = _spec("x", 2), _spec("made", None), _spec("y", None)
    steps = [
        Step(_NeedsBinding(lambda: np.ones(2, np.float32)), (), (made,)),
        Step(NumpyExecutable(lambda v, w: v + w), (made, x), (y,)),
    ]
    executor = Executor(steps, [x], ["y"])
    executor.bind()
    for _ in range(2):
        executor.feed({"x": np.ones(2, np.float32)})
        executor.run()
        np.testing.assert_array_equal(executor.results()["y"], [2, 2])


def test_scalar_of_a_dynamic_input_stays_a_scalar() -> None:
    text, y = TensorSpec("text", "unknown", None), _spec("y", None)
    executor = Executor([Step(NumpyExecutable(lambda v: v + 1), (text,), (y,))], [text], ["y"])
    executor.bind()
    executor.feed({"text": np.array(1, np.float32)})
    executor.run()
    assert executor.results()["y"].shape == ()


class CountingExecutable(NumpyExecutable):
    binds = 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self.binds += 1
        super().bind(inputs, outputs)


def test_what_stays_the_same_is_bound_once() -> None:
    """Binding costs more than a small model's run."""
    x, kept, y = _spec("x", 4), _spec("kept", None), _spec("y", None)
    first, second = CountingExecutable(lambda v: v[v > 0]), CountingExecutable(lambda v: v * 10)
    executor = Executor([Step(first, (x,), (kept,)), Step(second, (kept,), (y,))], [x], ["y"])
    executor.bind()
    executor.feed({"x": np.ones(4, np.float32)})
    for _ in range(3):
        executor.run()
    assert (first.binds, second.binds) == (1, 3)


def test_step_without_inputs_is_bound() -> None:
    y = _spec("y", None)
    executor = Executor([Step(NumpyExecutable(lambda: np.ones(3, np.float32)), (), (y,))], [], ["y"])
    executor.bind()
    executor.run()
    assert executor.results()["y"].shape == (3,)


def test_two_executors_share_executables_when_bound_again() -> None:
    x, y = _spec("x", 4), _spec("y", 4)
    shared = NumpyExecutable(lambda v: v + 1)
    one = Executor([Step(shared, (x,), (y,))], [x], ["y"])
    two = Executor([Step(shared, (x,), (y,))], [x], ["y"])
    for executor, value in ((one, 1.0), (two, 5.0), (one, 9.0)):
        executor.bind()
        executor.feed({"x": np.full(4, value, np.float32)})
        executor.run()
        np.testing.assert_array_equal(executor.results()["y"], np.full(4, value + 1, np.float32))


def test_each_value_is_checked_right_after_its_step() -> None:
    executor = _diamond()
    executor.bind()
    executor.feed({"x": np.zeros(4, np.float32)})
    seen: list[tuple[int, str, float]] = []
    executor.check_each(lambda step, name, value: seen.append((step, name, float(value[0]))))
    assert seen == [(0, "a", 1.0), (1, "b", 2.0), (2, "c", 3.0)]


def _forked(lanes: int, run: Callable[[Array], Array]) -> Executor:
    """A stem, two arms that both call `run`, and their sum."""
    x, a, b, c, y = (_spec(name, 4) for name in "xabcy")
    steps = [
        Step(NumpyExecutable(lambda v: v + 1), (x,), (a,)),
        Step(NumpyExecutable(run), (a,), (b,)),
        Step(NumpyExecutable(lambda v: run(v) * 2), (a,), (c,)),
        Step(NumpyExecutable(lambda v, w: v + w), (b, c), (y,)),
    ]
    return Executor(steps, [x], ["y"], lanes)


def test_independent_steps_run_at_once_when_the_plan_says_so() -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(value: Array) -> Array:
        both.wait()  # ends only when the other arm has come here too
        return value

    with contextlib.closing(_forked(2, meet)) as executor:
        assert executor.is_concurrent
        executor.bind()
        for value in (0.0, 3.0):
            executor.feed({"x": np.full(4, value, np.float32)})
            executor.run()
            np.testing.assert_array_equal(executor.results()["y"], np.full(4, 3 * (value + 1)))
        assert len(executor.run_timed()) == 4


def test_a_step_always_runs_on_the_same_thread() -> None:
    threads: list[str] = []

    def note(value: Array) -> Array:
        threads.append(threading.current_thread().name)
        return value

    with contextlib.closing(_forked(2, note)) as executor:
        executor.bind()
        for _ in range(5):
            executor.feed({"x": np.zeros(4, np.float32)})
            executor.run()
    assert sorted(set(threads)) == ["MainThread", "collage-lane-1_0"]
    assert len(threads) == 10


def test_error_of_one_lane_is_raised_after_all_have_ended() -> None:
    ended = threading.Event()

    def fail_or_end(value: Array) -> Array:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("the other lane")
        time.sleep(0.02)
        ended.set()
        return value

    with contextlib.closing(_forked(2, fail_or_end)) as executor:
        executor.bind()
        executor.feed({"x": np.zeros(4, np.float32)})
        with pytest.raises(ValueError, match="the other lane"):
            executor.run()
        assert ended.is_set()


def test_single_lane_keeps_the_given_order() -> None:
    executor = _forked(1, lambda v: v)
    assert not executor.is_concurrent
    reads, makes = [["x"], ["a"], ["a"], ["b", "c"], ["x"]], [["a"], ["b"], ["c"], ["y"], ["z"]]
    assert waves(reads, makes, 1) == [(0,), (1,), (2,), (3,), (4,)]
    assert waves(reads, makes, 2) == [(0, 4), (1, 2), (3,)]
    assert waves(reads, makes, 3) == [(0, 4), (1, 2), (3,)]


def test_values_are_checked_in_the_order_of_waves() -> None:
    """Steps 1 and 2 wait for step 0, step 3 for nobody: it runs in the first wave, and memory is shared by waves."""
    x = _spec("x", 4)
    names = ("a", "b", "c", "d", "e")
    a, b, c, d, e = (_spec(name, 4) for name in names)
    steps = [
        Step(NumpyExecutable(lambda v: v + 1), (x,), (a,)),
        Step(NumpyExecutable(lambda v: v + 2), (a,), (b,)),
        Step(NumpyExecutable(lambda v: v + 3), (b,), (c,)),
        Step(NumpyExecutable(lambda v: v + 4), (x,), (d,)),
        Step(NumpyExecutable(lambda v, w: v + w), (c, d), (e,)),
    ]
    executor = Executor(steps, [x], ["e"], lanes=2)
    executor.bind()
    executor.feed({"x": np.zeros(4, np.float32)})
    found: dict[str, float] = {}
    order: list[int] = []

    def keep(position: int, name: str, value: Array) -> None:
        found[name] = float(value[0])
        order.append(position)

    executor.check_each(keep)
    assert found == {"a": 1, "b": 3, "c": 6, "d": 4, "e": 10}
    assert order == [0, 3, 1, 2, 4]
    executor.close()

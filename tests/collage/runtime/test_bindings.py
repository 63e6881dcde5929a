"""Bindings of recent shapes: right results in any order of shapes, and what is bound how often."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime import bindings
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from tests.collage.runtime.free_shapes import Recipe, feed_of, recipes, steps_of, write
from tests.collage.runtime.test_executor import NumpyExecutable

Array = np.ndarray
SIZES = st.lists(
    st.tuples(st.sampled_from([(1, 1), (2, 5), (5, 2), (4, 4)]), st.integers(0, 3)),
    min_size=2,
    max_size=10,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipes(), SIZES, st.booleans(), st.integers(1, 2))
def test_shapes_in_any_order_give_no_stale_results(
    recipe: Recipe, calls: list[tuple[tuple[int, int], int]], handed: bool, lanes: int
) -> None:
    import onnxruntime

    with tempfile.TemporaryDirectory() as name:
        model = write(recipe, Path(name) / "model.onnx")
        compiled = CompiledRegions(1)
        steps, inputs = steps_of(recipe, model, compiled, Path(name))
        outputs = list(model.index.outputs)
        with contextlib.closing(Executor(steps, inputs, outputs, lanes)) as executor:
            if handed:
                executor.hand_over({"y", outputs[0]})
            executor.bind()
            for sizes, seed in calls:
                feed = feed_of(sizes, seed)
                executor.feed(feed)
                executor.run()
                session = onnxruntime.InferenceSession(model.path)
                wanted = dict(zip(outputs, session.run(outputs, feed), strict=True))
                for value, made in executor.results().items():
                    assert made.dtype == wanted[value].dtype
                    np.testing.assert_array_equal(made, wanted[value], err_msg=value)
        compiled.close()


class _Counted(NumpyExecutable):
    """Counts how often its buffers are named, and runs by a kept call."""

    def __init__(self, function: Callable[..., Array]) -> None:
        super().__init__(function)
        self.binds = self.calls = 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self.binds += 1
        super().bind(inputs, outputs)

    def bound_call(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        self.calls += 1
        (output,) = outputs

        def call() -> None:
            made = self._function(*inputs)
            if made.shape != output.shape:
                raise ValueError(f"{made.shape} instead of {output.shape}")
            np.copyto(output, made)

        return call


def _spec(name: str, *shape: int | None) -> TensorSpec:
    return TensorSpec(name, "float32", shape)


def _ran(executor: Executor, value: Array) -> Array:
    executor.feed({"x": value})
    executor.run()
    return executor.results()["y"]


def _chain(*functions: Callable[..., Array]) -> tuple[Executor, list[_Counted]]:
    names = ["x", *(f"v{i}" for i in range(len(functions) - 1)), "y"]
    executables = [_Counted(function) for function in functions]
    steps = [
        Step(executable, (_spec(read, None),), (_spec(made, None),))
        for executable, (read, made) in zip(executables, itertools.pairwise(names), strict=True)
    ]
    executor = Executor(steps, [_spec("x", None)], ["y"])
    executor.bind()
    return executor, executables


def test_a_shape_is_bound_once_and_kept() -> None:
    executor, (first, second) = _chain(lambda v: v + 1, lambda v: v * 2)
    for size in (3, 5, 3, 5, 3, 3, 5):
        value = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(_ran(executor, value), (value + 1) * 2)
    # Each size is learned by one run and bound once after it.
    assert (first.binds, first.calls) == (second.binds, second.calls) == (2, 2)


def test_a_second_run_of_one_feed_is_a_bound_one() -> None:
    executor, (executable,) = _chain(lambda v: v + 1)
    executor.feed({"x": np.zeros(4, np.float32)})
    for _ in range(3):
        executor.run()
        assert len(executor.run_timed()) == 1
        np.testing.assert_array_equal(executor.results()["y"], np.ones(4, np.float32))
    assert executable.calls == 1


def test_a_shape_that_depends_on_numbers_is_noticed_once() -> None:
    executor, (first, second) = _chain(lambda v: v[v > 0], lambda v: v * 10)
    for values in ([1, -1, 2], [1, -1, 2], [3, 4, 5], [-1, 6, 7], [-1, -1, 8]):
        value = np.array(values, np.float32)
        np.testing.assert_array_equal(_ran(executor, value), value[value > 0] * 10)
    # A place is made once; afterwards both values stay loose, and only the reader is bound again.
    assert (first.calls, second.calls) == (1, 1)
    assert first.binds < second.binds


def test_an_error_of_a_runtime_stays_an_error() -> None:
    def refuse(value: Array) -> Array:
        if value[0] < 0:
            raise ValueError("negative")
        return value + 1

    executor, _ = _chain(refuse)
    for value in (1.0, 1.0, 2.0):
        assert _ran(executor, np.full(2, value, np.float32))[0] == value + 1
    with pytest.raises(ValueError, match="negative"):
        _ran(executor, np.full(2, -1, np.float32))
    assert _ran(executor, np.full(2, 5, np.float32))[0] == 6


def test_bindings_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_MOST_BINDINGS", 2)
    executor, (executable,) = _chain(lambda v: v + 1)
    sizes = (8, 7, 6, 8, 7, 6)  # no block grows after the first is bound
    for size in (*sizes, 8, 6, 6, 8):
        _ran(executor, np.zeros(size, np.float32))
    # After three bound sizes the oldest, 8, is bound again, which drops 7.
    assert executable.calls == 4


def test_shapes_that_need_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_MOST_BYTES", 1024)
    executor, (executable,) = _chain(lambda v: v + 1)
    for size in (8, 10_000, 8, 10_000, 8, 10_000):
        np.testing.assert_array_equal(_ran(executor, np.zeros(size, np.float32)), np.ones(size))
    assert executable.calls == 1


def test_a_larger_shape_moves_the_memory_of_the_smaller_ones() -> None:
    executor, (executable,) = _chain(lambda v: v + 1)
    for size in (4, 4, 4, 9000, 9000, 4, 9000, 4):
        value = np.full(size, size, np.float32)
        np.testing.assert_array_equal(_ran(executor, value), value + 1)
    assert executable.calls == 3  # 4, then 9,000 in a new block, then 4 in it too


def test_binding_again_keeps_what_was_fed() -> None:
    executor, _ = _chain(lambda v: v + 1)
    for _ in range(2):
        _ran(executor, np.zeros(3, np.float32))
    executor.bind()
    executor.run()
    np.testing.assert_array_equal(executor.results()["y"], np.ones(3, np.float32))


def test_values_that_are_handed_over_are_not_copied() -> None:
    x, y = _spec("x", 4), _spec("y", 4)
    seen: list[Array] = []

    def note(value: Array) -> Array:
        seen.append(value)
        return value + 1

    executor = Executor([Step(NumpyExecutable(note), (x,), (y,))], [x], ["y"])
    executor.hand_over({"x", "y"})
    executor.bind()
    value = np.zeros(4, np.float32)
    made = []
    for _ in range(3):
        executor.feed({"x": value})
        executor.run()
        value = executor.value("y")
        made.append(value)
    assert seen[1] is made[0] and seen[2] is made[1]
    assert [float(array[0]) for array in made] == [1, 2, 3]


def test_places_are_made_only_where_a_step_has_no_other_values() -> None:
    specs = [_spec(name, None) for name in ("x", "a", "b", "y")]
    executables = [_Counted(lambda v: v + 1) for _ in range(3)]
    steps = [
        Step(executable, (read,), (made,))
        for executable, (read, made) in zip(executables, itertools.pairwise(specs), strict=True)
    ]
    for names, calls in (({"x", "a"}, [0, 0, 1]), ({"x", "b"}, [0, 0, 0]), ((), [1, 1, 1])):
        executor = Executor(steps, [specs[0]], ["y"])
        executor.hand_over(names)
        executor.bind()
        for executable in executables:
            executable.calls = 0
        for value in (1, 2, 3):
            np.testing.assert_array_equal(_ran(executor, np.full(2, value, np.float32)), value + 3)
        assert [executable.calls for executable in executables] == calls


@pytest.fixture(params=["onnxruntime", "openvino", "mnn"])
def negation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    """`y` is `-x`, of two free dimensions. The fixed `z` is large, so that ONNX Runtime binds its outputs."""
    info, width = helper.make_tensor_value_info, 20_000
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["sum"]),
        helper.make_node("Mul", ["sum", "ones"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "negation",
        [info("x", TensorProto.FLOAT, ["n", "m"])],
        [info("y", TensorProto.FLOAT, ["n", "m"]), info("z", TensorProto.FLOAT, [1, width])],
        [onnx.numpy_helper.from_array(np.ones((1, width), np.float32), "ones")],
    )
    path = tmp_path / "model.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    specs = (_spec("x", None, None),), (_spec("y", None, None), _spec("z", 1, width))
    compiled = CompiledRegions(1)
    executable = compiled.get("0", SubModel(path, *specs), Target.parse(request.param))
    executor = Executor([Step(executable, *specs)], specs[0], ["y", "z"])
    executor.bind()
    yield executor
    executor.close()
    compiled.close()


@pytest.mark.parametrize("handed", [(), ("x",)])
def test_an_array_that_is_reshaped_in_place_is_bound_again(
    negation: Executor, handed: tuple[str, ...]
) -> None:
    negation.hand_over(handed)
    negation.bind()
    value = np.arange(16, dtype=np.float32)
    for shape in ((1, 16), (2, 8), (4, 4), (2, 8), (1, 16), (1, 16)):
        value.resize(shape, refcheck=False)
        np.testing.assert_array_equal(_ran(negation, value), -value)
        np.testing.assert_array_equal(negation.results()["z"], np.full((1, 20_000), 120))


@pytest.mark.parametrize("handed", [(), ("x",)])
def test_bytes_of_another_order_are_read_right(negation: Executor, handed: tuple[str, ...]) -> None:
    negation.hand_over(handed)
    negation.bind()
    for value in (np.ones((2, 3), ">f4"), np.ones((2, 3), "<f4"), np.full((2, 3), 2, ">f4")):
        np.testing.assert_array_equal(_ran(negation, value), -value.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "mnn"])
@pytest.mark.parametrize("given", [(2, 4), (1, 4), (3, 4), (5, 4)])
def test_an_output_of_another_shape_is_an_error(
    target: str, given: tuple[int, int], tmp_path: Path
) -> None:
    """OpenVINO leaves out what does not fit, and says nothing."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "free", [x], [y])
    path = tmp_path / "model.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    model = SubModel(path, (_spec("x", None, 4),), (_spec("y", None, 4),))
    compiled = CompiledRegions(1)
    executable = compiled.get("0", model, Target.parse(target))
    value, place = np.ones((3, 4), np.float32), np.full(given, 77, np.float32)
    call = executable.bound_call([value], [place])
    right = np.empty((3, 4), np.float32)
    other = executable.bound_call([value], [right])
    for _ in range(2):
        other()
        np.testing.assert_allclose(right, np.exp(-value), rtol=1e-5)
        if given == value.shape:
            call()
            np.testing.assert_allclose(place, right)
        else:
            with pytest.raises(Exception, match=r"."):
                call()
    executable.bind([value[:2]], [None])
    executable.run()
    np.testing.assert_allclose(executable.results[0], right[:2])
    compiled.close()

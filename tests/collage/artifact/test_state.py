"""State between calls: what may be bound, how it starts, and that results are those of feeding by hand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from benchmarks.load_time import make_artifact
from collage.artifact.session import Session
from collage.artifact.state import State
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec

Array = np.ndarray


def _spec(name: str, *shape: int | None, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def _decoder_state() -> State:
    kinds = ("key", "value")
    inputs = [_spec("ids", None, None, dtype="int64")]
    inputs += [_spec(f"past.{i}.{kind}", None, 2, None, 8) for i in range(2) for kind in kinds]
    outputs = [_spec("logits", None, 50)]
    outputs += [_spec(f"present.{i}.{kind}", None, 2, None, 8) for i in range(2) for kind in kinds]
    dims = {spec.name: {0: "batch", 2: "past"} for spec in inputs[1:]}
    return State(inputs, outputs, {"ids": {0: "batch", 1: "length"}, **dims})


def test_a_pattern_binds_all_that_fit() -> None:
    state = _decoder_state()
    assert state.bind("present.*", "past.*") == {
        f"present.{i}.{kind}": f"past.{i}.{kind}" for i in range(2) for kind in ("key", "value")
    }
    other = _decoder_state()
    assert other.bind("present.*.key", "past.*.key") == {
        "present.0.key": "past.0.key",
        "present.1.key": "past.1.key",
    }
    other.bind("present.1.value", "past.1.value")
    assert len(other.pairs) == 3


def test_state_starts_empty_along_what_no_input_says() -> None:
    state = _decoder_state()
    state.bind("present.*", "past.*")
    feed = state.complete({"ids": np.zeros((3, 5), np.int64)})
    assert {feed[f"past.{i}.{kind}"].shape for i in range(2) for kind in ("key", "value")} == {
        (3, 2, 0, 8)
    }


@pytest.mark.parametrize(
    ("output", "to", "message"),
    [
        (
            "presents.*",
            "past.*",
            "no output is called 'presents.*'; the model has 'logits', 'present.0",
        ),
        ("present.*", "pasts.*", "would feed the input 'pasts.0.key', and the model has 'ids'"),
        ("present.*.*", "past.*", "the same number of"),
        ("logits", "ids", "output 'logits' is float32, and input 'ids' takes int64"),
        ("logits", "past.0.key", "has shape .* which never fits input 'past.0.key'"),
        ("present.*.key", "past.0.key", "the same number of"),
        ("present.1.key", "past.0.value", "is bound to output 'present.0.value' already"),
    ],
)
def test_what_cannot_be_bound_is_told(output: str, to: str, message: str) -> None:
    state = _decoder_state()
    state.bind("present.0.value", "past.0.value")
    with pytest.raises(BadInputError, match=message):
        state.bind(output, to)
    assert state.pairs == {"present.0.value": "past.0.value"}


def test_an_input_that_passes_through_is_copied() -> None:
    """The caller may change an array after the call."""
    state = State([_spec("x", 2)], [_spec("y", 2)])
    state.bind("y", "x")
    given = np.ones(2, np.float32)
    state.keep({"y": given}, {"x": given})
    given[:] = 9
    np.testing.assert_array_equal(state.complete({})["x"], [1, 1])


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recurrent cell in two partitions: `new = tanh(x w + old u)`, `y = exp(new)`."""
    folder = tmp_path_factory.mktemp("state")
    random = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(random.standard_normal((4, 4)).astype(np.float32), n) for n in "wu"
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("MatMul", ["old", "u"], ["b"], name="b"),
        helper.make_node("Add", ["a", "b"], ["c"], name="c"),
        helper.make_node("Tanh", ["c"], ["new"], name="new"),
        helper.make_node("Exp", ["new"], ["y"], name="y"),
    ]
    x, old, new, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x", "old", "new", "y")
    )
    graph = helper.make_graph(nodes, "cell", [x, old], [new, y], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), folder / "cell.onnx")
    normalize(folder / "cell.onnx", folder, {})
    model = Model.open(folder / "model.onnx")
    plan = Plan(
        (
            Candidate(0b00111, Target.parse("onnxruntime")),
            Candidate(0b11000, Target.parse("openvino")),
        )
    )
    return make_artifact(model, plan, folder / "cell.collage.onnx")


@pytest.fixture
def session(artifact: Path, tmp_path: Path) -> Session:
    return collage.load(artifact, cache_dir=tmp_path)


def _x(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((1, 4)).astype(np.float32)


@pytest.mark.slow
def test_results_are_those_of_feeding_by_hand(session: Session, artifact: Path, tmp_path: Path) -> None:
    with session, collage.load(artifact, cache_dir=tmp_path) as plain:
        assert session.bind_output_to_input("new", "old") == {"new": "old"}
        for _ in range(2):
            old = np.zeros((1, 4), np.float32)
            for seed in range(5):
                old, wanted = plain.run(["new", "y"], {"x": _x(seed), "old": old})
                (made,) = session.run(None, {"x": _x(seed)})
                np.testing.assert_allclose(made, wanted, rtol=1e-6)
            session.reset_state()


def test_a_given_input_replaces_the_state(session: Session) -> None:
    with session:
        session.bind_output_to_input("new", "old")
        session.run(None, {"x": _x(0)})
        given = _x(7)
        first = session.run(["new"], {"x": _x(1), "old": given})[0]
        kept = first.copy()
        first[:] = 99  # the caller's own
        again = session.run(["new", "y"], {"x": _x(2)})
        session.reset_state()
        wanted = session.run(["new", "y"], {"x": _x(2), "old": kept})
        np.testing.assert_array_equal(again[0], wanted[0])
        np.testing.assert_array_equal(again[1], wanted[1])


def test_a_refused_call_leaves_the_state(session: Session) -> None:
    with session:
        session.bind_output_to_input("new", "old")
        kept = session.run(["new"], {"x": _x(0)})[0]
        for feed in ({}, {"x": _x(0)[:, :2]}, {"x": _x(0).astype(np.float64)}, {"z": _x(0)}):
            with pytest.raises(BadInputError):
                session.run(None, feed)
        made = session.run(["new"], {"x": _x(1)})[0]
        np.testing.assert_array_equal(made, session.run(["new"], {"x": _x(1), "old": kept})[0])


@pytest.mark.slow
def test_calls_at_once_are_refused(session: Session) -> None:
    with session, ThreadPoolExecutor(2) as pool:
        session.bind_output_to_input("new", "old")
        both = threading.Barrier(2)

        def work(_: int) -> str:
            both.wait()
            try:
                for _ in range(3000):
                    session.run(None, {"x": _x(0)})
            except BadInputError as error:
                return str(error)
            return ""

        told = list(pool.map(work, range(2)))
    assert any("keeps the state of one sequence, and another call is running" in text for text in told)

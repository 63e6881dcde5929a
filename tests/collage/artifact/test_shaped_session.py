"""Sessions that take every shape of a range."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.artifact.session import LoadError
from collage.artifact.shaped_session import ShapedSession
from collage.partitioner.errors import BadInputError
from collage.runtime.compiled import CompiledRegions, CompileError
from collage.shapes.classes import SHAPES_KEY
from collage.shapes.padding import Padding
from tests.collage.artifact.shaped_artifacts import shaped_artifact
from tests.collage.shapes import models as shape_models

_DIMS = {"batch": "1,3", "length": "2..12"}
_BOTH = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes with mirrored targets."""
    classes = [(12, _BOTH), (None, tuple(reversed(_BOTH)))]
    return shaped_artifact(shape_models.chain(), tmp_path_factory.mktemp("shaped"), _DIMS, classes)


def _load(path: Path, **options: Any) -> ShapedSession:
    session = collage.load(path, cache_dir=False, threads=1, **options)
    assert isinstance(session, ShapedSession)
    return session


def _feed(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, length, 8)).astype(np.float32)
    return {"x": x, "bias": rng.standard_normal(length).astype(np.float32)}


def _check(session: ShapedSession, path: Path, feed: dict[str, np.ndarray]) -> None:
    names = [node.name for node in session.get_outputs()]
    wanted = onnxruntime.InferenceSession(path.with_name("source.onnx")).run(names, feed)
    for mine, other in zip(session.run(names, feed), wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_every_size_of_the_range_runs_in_any_order(artifact: Path) -> None:
    rng = np.random.default_rng(3)
    with _load(artifact) as session:
        for seed in range(40):
            _check(session, artifact, _feed(int(rng.integers(1, 4)), int(rng.integers(2, 13)), seed))


def test_dimensions_are_described_as_onnx_runtime_does(artifact: Path) -> None:
    wanted = onnxruntime.InferenceSession(artifact)
    with _load(artifact) as session:
        for mine, other in zip(session.get_inputs(), wanted.get_inputs(), strict=True):
            assert (mine.name, list(mine.shape or ()), mine.type) == (
                other.name,
                other.shape,
                other.type,
            )
        assert [node.name for node in session.get_outputs()] == ["y", "z"]


def test_any_runtime_runs_the_artifact_at_any_size(artifact: Path) -> None:
    plain = onnxruntime.InferenceSession(artifact)
    for length in (2, 7, 40):
        feed = _feed(2, length)
        wanted = onnxruntime.InferenceSession(artifact.with_name("source.onnx")).run(None, feed)
        for mine, other in zip(plain.run(None, feed), wanted, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        ((1, 13, 8), (13,), r"input 'x', axis 1: length is 13, which is outside of 2\.\.12"),
        ((4, 5, 8), (5,), r"input 'x', axis 0: batch is 4, which is outside of 1\.\.3"),
        ((1, 5, 9), (5,), "input 'x', axis 2: the size is 9, and the model has 8"),
        ((1, 5), (5,), r"input 'x' must have 3 axes \(batch, length, 8\), not \(1, 5\)"),
        ((1, 5, 8), (6,), "input 'bias', axis 0: length is 6, and input 'x', axis 1 gave it as 5"),
    ],
)
def test_a_shape_that_does_not_fit_is_told(
    artifact: Path, x: tuple[int, ...], bias: tuple[int, ...], message: str
) -> None:
    with _load(artifact) as session, pytest.raises(BadInputError, match=message):
        session.run(None, {"x": np.zeros(x, np.float32), "bias": np.zeros(bias, np.float32)})


def test_outside_the_range_runs_where_the_caller_asks_for_it(artifact: Path) -> None:
    with _load(artifact, outside="run") as session:
        _check(session, artifact, _feed(5, 30))
        with pytest.raises(BadInputError, match="must have 3 axes"):
            session.run(None, {"x": np.zeros((1, 5), np.float32), "bias": np.zeros(5, np.float32)})


def test_what_is_to_become_of_other_shapes_is_run_or_refuse(artifact: Path) -> None:
    with pytest.raises(BadInputError, match=r'outside must be "refuse" or "run", not \'error\''):
        _load(artifact, outside="error")


def test_inputs_of_another_byte_order_are_read_right(artifact: Path) -> None:
    feed = _feed(2, 7)
    swapped = {name: value.astype(value.dtype.newbyteorder()) for name, value in feed.items()}
    with _load(artifact) as session:
        made = [session.run(None, swapped) for _ in range(2)]  # first, so that no place is known
        for mine in made:
            for value, other in zip(mine, session.run(None, feed), strict=True):
                np.testing.assert_array_equal(value, other)


def test_a_wrong_type_an_unknown_output_and_a_closed_session_are_told(artifact: Path) -> None:
    session = _load(artifact)
    with pytest.raises(BadInputError, match="of float32, not float64"):
        session.run(None, {name: value.astype(np.float64) for name, value in _feed(1, 4).items()})
    with pytest.raises(BadInputError, match="unknown outputs"):
        session.run(["w"], _feed(1, 4))
    session.close()
    with pytest.raises(BadInputError, match="closed"):
        session.run(None, _feed(1, 4))


def test_shapes_that_depend_on_data_change_from_call_to_call(tmp_path: Path) -> None:
    model, open_values = shape_models.data_dependent(), ["places", "rows", "y", "z"]
    path = shaped_artifact(
        model, tmp_path, {"rows": "1..9"}, [(None, _BOTH)], data_dependent=open_values
    )
    rng = np.random.default_rng(0)
    with _load(path) as session:
        for _ in range(20):
            rows = int(rng.integers(1, 10))
            x = rng.standard_normal((rows, 4)).astype(np.float32)
            _check(session, path, {"x": x, "first": rng.integers(0, 2, rows).astype(bool)})


@pytest.fixture(scope="module")
def heated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One class, whose shapes are compiled alone from the third request on."""
    folder = tmp_path_factory.mktemp("hot")
    return shaped_artifact(
        shape_models.chain(), folder, _DIMS, [(None, _BOTH)], hot=("openvino",), most_copies=7
    )


def test_a_shape_that_comes_often_is_compiled_alone(heated: Path) -> None:
    with _load(heated) as session:
        before = session._served[0].by_shape.copies
        for seed in range(6):
            _check(session, heated, _feed(2, 7, seed))
            assert session._served[0].by_shape.copies == before + (seed >= 2)
        assert not session.not_hot


@pytest.mark.slow
def test_copies_for_one_shape_stay_within_their_bound(heated: Path) -> None:
    with _load(heated) as session:
        for seed in range(60):
            _check(session, heated, _feed(1 + seed % 3, 2 + seed % 5, seed))
            assert session._served[0].by_shape.copies <= 7


def test_the_caller_may_allow_no_copies(heated: Path) -> None:
    with _load(heated, most_copies=0) as session:
        for seed in range(5):
            _check(session, heated, _feed(2, 7, seed))
        assert session._served[0].by_shape.copies == 0


def test_a_shape_that_cannot_be_compiled_alone_runs_on(
    heated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _load(heated) as session:
        compile_one = CompiledRegions.get

        def refuse(self: CompiledRegions, name: str, *rest: Any, **options: Any) -> Any:
            if name.startswith("shape-"):
                raise CompileError("no memory")
            return compile_one(self, name, *rest, **options)

        monkeypatch.setattr(CompiledRegions, "get", refuse)
        for seed in range(5):
            _check(session, heated, _feed(2, 9, seed))
        assert session.not_hot == {(2, 9): "no memory"}


def test_a_shape_whose_file_is_gone_runs_on(heated: Path, tmp_path: Path) -> None:
    with collage.load(heated, cache_dir=tmp_path / "cache", threads=1) as session:
        assert isinstance(session, ShapedSession)
        shutil.rmtree(tmp_path / "cache")
        before = session._served[0].by_shape.copies
        for seed in range(5):
            _check(session, heated, _feed(2, 9, seed))
        assert "load the artifact again" in session.not_hot[2, 9]
        assert session._served[0].by_shape.copies == before


def test_a_shape_that_is_compiled_wrongly_runs_on(
    heated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _load(heated) as session:
        run = session._served[0].by_shape.run

        def wrong(plan: Any, *rest: Any) -> Any:
            made = run(plan, *rest)
            hot = plan is session._classes[0].hot
            return {name: value + 1 if hot else value for name, value in made.items()}

        monkeypatch.setattr(session._served[0].by_shape, "run", wrong)
        for seed in range(5):
            _check(session, heated, _feed(2, 11, seed))
        assert "differs by" in session.not_hot[2, 11]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["artifact", "heated"])
def test_instances_take_requests_of_any_shape_at_once(
    name: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    rng = np.random.default_rng(4)
    feeds = [_feed(int(rng.integers(1, 4)), int(rng.integers(2, 8)), seed) for seed in range(80)]
    plain = onnxruntime.InferenceSession(path.with_name("source.onnx"))
    with _load(path, instances=2) as session, ThreadPoolExecutor(4) as pool:
        assert session.instances == 2
        names = [node.name for node in session.get_outputs()]
        for feed, made in zip(feeds, pool.map(partial(session.run, names), feeds), strict=True):
            for mine, other in zip(made, plain.run(names, feed), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)
        copies = [instance.by_shape.copies for instance in session._served]
        assert sum(copies) <= 7 and (name == "artifact" or all(copies))
        with pytest.raises(BadInputError, match="one instance"):
            session.bind_output_to_input("y", "x")


def test_instances_keep_to_the_bound_of_copies(heated: Path) -> None:
    with _load(heated, instances=2, most_copies=1) as session:
        for seed in range(8):
            _check(session, heated, _feed(2, 7, seed))
        assert sum(instance.by_shape.copies for instance in session._served) == 0


@pytest.mark.slow
def test_instances_pad_requests_of_any_shape_at_once(tmp_path: Path) -> None:
    path = _padded_artifact(tmp_path, _PADDING)
    rng = np.random.default_rng(5)
    feeds = [_feed(int(rng.integers(1, 9)), int(rng.choice([3, 7])), seed) for seed in range(60)]
    plain = onnxruntime.InferenceSession(tmp_path / "source.onnx")
    with _load(path, instances=2) as session, ThreadPoolExecutor(4) as pool:
        names = [node.name for node in session.get_outputs()]
        for feed, made in zip(feeds, pool.map(partial(session.run, names), feeds), strict=True):
            for mine, other in zip(made, plain.run(names, feed), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)
        assert all(instance.by_shape.copies for instance in session._served)
        assert not session.not_hot


def test_too_many_instances_are_refused(artifact: Path) -> None:
    with pytest.raises(BadInputError, match="need more than the"):
        _load(artifact, instances=4096)


def test_a_partition_that_was_compiled_wrongly_is_not_served(artifact: Path, tmp_path: Path) -> None:
    model = onnx.load(artifact)
    entry = next(e for e in model.metadata_props if e.key == SHAPES_KEY)
    data = json.loads(entry.value)
    proof = json.loads(data["proofs"][0]["plan"])
    for value in proof["values"]:
        value["y"]["rms"] += 10.0
    data["proofs"][0]["plan"] = json.dumps(proof)
    entry.value = json.dumps(data)
    onnx.save(model, tmp_path / "wrong.onnx")
    with pytest.raises(LoadError, match=r"compiled wrongly for batch=1, length=2: value 'y' differs"):
        _load(tmp_path / "wrong.onnx")


def test_the_second_load_finds_what_the_first_one_unpacked(artifact: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with collage.load(artifact, cache_dir=tmp_path, threads=1) as session:
            assert isinstance(session, ShapedSession)
            _check(session, artifact, _feed(2, 6))
    (folder,) = tmp_path.glob("shapes-*")
    parts = {part.model.path.parent.parent for one in session._classes for part in one.plan.parts}
    assert parts == {folder}
    (folder / "shapes.json").write_text("{", encoding="utf-8")  # damaged
    with collage.load(artifact, cache_dir=tmp_path, threads=1) as again:
        assert isinstance(again, ShapedSession)
        _check(again, artifact, _feed(2, 6))


_PADDING = Padding("batch", (2, 4, 6), {"x": 0}, {"y": (0, 1), "z": (0, 1)})


def _padded_artifact(folder: Path, padding: Padding) -> Path:
    return shaped_artifact(
        shape_models.chain(),
        folder,
        {"batch": "1..8", "length": "2..12"},
        [(None, ("onnxruntime", "openvino"))],
        hot=("openvino",),
        hot_from=1,
        padding=padding,
    )


def _padded_feed(rng: np.random.Generator, batch: int, length: int) -> dict[str, np.ndarray]:
    x = rng.standard_normal((batch, length, 8)).astype(np.float32)
    return {"x": x, "bias": rng.standard_normal(length).astype(np.float32)}


def test_sizes_in_random_order_are_those_of_fresh_sessions(tmp_path: Path) -> None:
    path = _padded_artifact(tmp_path, _PADDING)
    plain = onnxruntime.InferenceSession(tmp_path / "source.onnx")
    rng = np.random.default_rng(3)
    with collage.load(path, cache_dir=False, threads=1) as session:
        assert isinstance(session, ShapedSession)
        for _ in range(40):
            feed = _padded_feed(rng, int(rng.integers(1, 9)), int(rng.choice([3, 7])))
            for mine, other in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                assert mine.shape == other.shape
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)
        assert session._served[0].by_shape.copies == 6  # three buckets at two lengths
        assert not session.not_hot


def test_wrong_cut_is_found_at_the_first_request(tmp_path: Path) -> None:
    wrong = Padding("batch", (4,), {"x": 0}, {"y": (1, 1), "z": (0, 1)})
    path = _padded_artifact(tmp_path, wrong)
    rng = np.random.default_rng(4)
    with collage.load(path, cache_dir=False, threads=1) as session:
        assert isinstance(session, ShapedSession)
        for _ in range(2):
            y, _ = session.run(None, _padded_feed(rng, 2, 3))
            assert y.shape == (2, 3, 8)
        assert session.not_hot


def test_padding_is_compared_at_the_first_request_that_has_any(tmp_path: Path) -> None:
    wrong = Padding("batch", (4,), {"x": 0}, {"y": (1, 1), "z": (0, 1)})
    path = _padded_artifact(tmp_path, wrong)
    rng = np.random.default_rng(4)
    with _load(path) as session:
        for batch, is_hot in ((4, True), (4, True), (2, False), (2, False), (4, False)):
            _check(session, path, _padded_feed(rng, batch, 3))
            assert ((4, 3) not in session.not_hot) == is_hot


def test_outputs_that_the_first_request_does_not_want_are_compared(tmp_path: Path) -> None:
    wrong = Padding("batch", (4,), {"x": 0}, {"y": (1, 1), "z": (0, 1)})
    path = _padded_artifact(tmp_path, wrong)
    rng = np.random.default_rng(4)
    with _load(path) as session:
        (z,) = session.run(["z"], _padded_feed(rng, 2, 3))
        assert z.shape[0] == 2 and "output 'y'" in session.not_hot[4, 3]


def test_right_padding_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _padded_artifact(tmp_path, _PADDING)
    rng = np.random.default_rng(4)
    with _load(path) as session:
        by_shape = session._served[0].by_shape
        ran, run = [], by_shape.run

        def note(plan: Any, *rest: Any) -> Any:
            ran.append("hot" if plan is session._classes[0].hot else "all")
            return run(plan, *rest)

        monkeypatch.setattr(by_shape, "run", note)
        for batch in (4, 4, 3, 3, 4):
            _check(session, path, _padded_feed(rng, batch, 3))
        # Compiled at a request without padding, compared once more at the first one with it.
        assert ran == ["all", "hot", "hot", "all", "hot", "hot", "hot"]


@pytest.mark.parametrize("padding", [_PADDING, None])
def test_what_an_artifact_says_of_padding_is_read(tmp_path: Path, padding: Padding | None) -> None:
    path = shaped_artifact(
        shape_models.image(),
        tmp_path,
        {"batch": "1..8", "height": "8,9", "width": "8,9"},
        [(None, ("onnxruntime",))],
        hot=("onnxruntime",),
        padding=padding,
    )
    with collage.load(path, cache_dir=False, threads=1) as session:
        assert isinstance(session, ShapedSession)
        assert session.shapes.classes[0].padding == padding

"""Plans at shapes that come in any order: never a result of another shape."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.backends.registry import resolve
from collage.model.reference import RUNTIME
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import TargetError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runtime.by_shape import ByShape, Part, PartedPlan, ShapeError
from collage.runtime.compiled import CompiledRegions, CompileError
from collage.shapes.classes import Treatment
from tests.collage.shapes import models as shape_models

Draw = Callable[[np.random.Generator], dict[str, np.ndarray]]
Cut = Sequence[tuple[str, int, Treatment]]
"""Of each partition its target, the number of its first node, and how it is compiled."""


def _draw_chain(rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch, length = rng.integers(1, 4), rng.integers(2, 9)
    x = rng.standard_normal((batch, length, 8)).astype(np.float32)
    return {"x": x, "bias": rng.standard_normal(length).astype(np.float32)}


def _draw_image(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shape = (rng.integers(1, 3), 3, rng.integers(4, 20), rng.integers(4, 20))
    return {"x": rng.standard_normal(shape).astype(np.float32)}


def _draw_data(rng: np.random.Generator) -> dict[str, np.ndarray]:
    rows = rng.integers(1, 6)
    x = rng.standard_normal((rows, 4)).astype(np.float32)
    return {"x": x, "first": rng.integers(0, 2, rows).astype(bool)}


class _Case:
    def __init__(self, model: onnx.ModelProto, kept: list[str], folder: Path) -> None:
        self.folder = folder
        onnx.save(model, folder / "source.onnx")
        self.model = Model.open(normalize(folder / "source.onnx", folder, {}, 0, RUNTIME, kept).path)
        self.names = list(self.model.index.outputs)
        self._regions = RegionFiles(self.model, folder / "regions")

    def plan(self, cut: Cut) -> PartedPlan:
        index = self.model.index
        parts = []
        for i, (text, first, treatment) in enumerate(cut):
            end = cut[i + 1][1] if i + 1 < len(cut) else len(index.nodes)
            model = self._regions.get(index.all_nodes >> first << first & (1 << end) - 1)
            parts.append(Part(model.path.parent.name, model, Target.parse(text), treatment))
        return PartedPlan(tuple(parts))

    @contextmanager
    def running(self, data_dependent: Sequence[str] = (), **bounds: int) -> Iterator[ByShape]:
        index = self.model.index
        compiled = CompiledRegions(1)
        inputs = [index.values[name] for name in index.inputs]
        by_shape = ByShape(compiled, inputs, self.names, data_dependent, **bounds)
        yield by_shape
        by_shape.close()
        compiled.close()

    def wanted(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """What a session that never saw another shape computes."""
        found: list[np.ndarray] = onnxruntime.InferenceSession(self.folder / "source.onnx").run(
            self.names, dict(feed)
        )
        return found


def _check(case: _Case, by_shape: ByShape, plan: PartedPlan, feed: Mapping[str, np.ndarray]) -> None:
    made = by_shape.run(plan, feed, case.names)
    for name, wanted in zip(case.names, case.wanted(feed), strict=True):
        np.testing.assert_allclose(made[name], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("treatment", ["dynamic", "exact"])
@pytest.mark.parametrize(
    "targets", [("onnxruntime", "openvino"), ("openvino", "onnxruntime"), ("mnn",)]
)
def test_images_in_random_order(tmp_path: Path, targets: tuple[str, ...], treatment: Treatment) -> None:
    _skip_missing(targets)
    case = _Case(shape_models.image(), ["batch", "height", "width"], tmp_path)
    plan = case.plan([(text, 2 * i, treatment) for i, text in enumerate(targets)])
    rng = np.random.default_rng(7)
    feeds = [_draw_image(rng) for _ in range(6)]
    with case.running(most_instances=4, most_copies=6) as by_shape:
        for i in rng.integers(0, len(feeds), 30):
            fresh = {name: rng.standard_normal(v.shape).astype(v.dtype) for name, v in feeds[i].items()}
            _check(case, by_shape, plan, fresh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "kept", "draw", "open_values"),
    [
        (shape_models.chain, ["batch", "length"], _draw_chain, []),
        (shape_models.data_dependent, ["rows"], _draw_data, ["rows", "places", "y", "z"]),
    ],
    ids=["chain", "data_dependent"],
)
@pytest.mark.parametrize("seed", range(3))
def test_chains_of_shapes_in_random_order(
    tmp_path: Path,
    model: Callable[[], onnx.ModelProto],
    kept: list[str],
    draw: Draw,
    open_values: list[str],
    seed: int,
) -> None:
    case = _Case(model(), kept, tmp_path)
    rng = np.random.default_rng(seed)
    count = len(case.model.index.nodes)
    middle = int(rng.integers(1, count))
    targets = [str(t) for t in rng.permutation(["onnxruntime", "openvino"])]
    treatments: list[Treatment] = ["dynamic", "exact"] if seed % 2 else ["dynamic", "dynamic"]
    plans = [
        case.plan([(targets[0], 0, treatments[0]), (targets[1], middle, treatments[1])]),
        case.plan([("onnxruntime", 0, "dynamic")]),
    ]
    with case.running(open_values, most_instances=3) as by_shape:
        for i in range(24):
            _check(case, by_shape, plans[i % 2], draw(rng))


@pytest.mark.parametrize("treatment", ["dynamic", "exact"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_inputs_that_are_read_only_or_not_aligned_are_read_right(
    tmp_path: Path, treatment: Treatment, ahead: int
) -> None:
    """As `np.frombuffer` makes them; OpenVINO takes no such memory."""
    case = _Case(shape_models.chain(), ["batch", "length"], tmp_path)
    plan = case.plan([("openvino", 0, treatment)])
    feed = {
        name: np.frombuffer(bytes(ahead) + v.tobytes(), v.dtype, offset=ahead).reshape(v.shape)
        for name, v in _draw_chain(np.random.default_rng(0)).items()
    }
    with case.running() as by_shape:
        for _ in range(3):
            _check(case, by_shape, plan, feed)


def test_copies_for_one_shape_are_bounded(tmp_path: Path) -> None:
    case = _Case(shape_models.image(), ["batch", "height", "width"], tmp_path)
    plan = case.plan([("onnxruntime", 0, "exact")])
    with case.running(most_copies=2) as by_shape:
        for width in (8, 9, 10, 8):
            _check(case, by_shape, plan, {"x": np.ones((1, 3, 8, width), np.float32)})
            assert by_shape.copies <= 2
        assert not list(tmp_path.rglob("shape-*"))


def test_a_refused_shape_leaves_the_others_running(tmp_path: Path) -> None:
    case = _Case(shape_models.chain(), ["batch", "length"], tmp_path)
    plan = case.plan([("onnxruntime", 0, "dynamic")])
    good = _draw_chain(np.random.default_rng(0))
    with case.running() as by_shape:
        _check(case, by_shape, plan, good)
        with pytest.raises(ShapeError, match=r"cannot run with x \(2, 3, 8\), bias \(4,\)"):
            by_shape.run(
                plan, {"x": np.ones((2, 3, 8), np.float32), "bias": np.ones(4, np.float32)}, case.names
            )
        _check(case, by_shape, plan, good)


def test_a_partition_whose_file_is_gone_is_told(tmp_path: Path) -> None:
    case = _Case(shape_models.chain(), ["batch", "length"], tmp_path)
    plan = case.plan([("onnxruntime", 0, "exact")])
    good = _draw_chain(np.random.default_rng(0))
    with case.running() as by_shape:
        _check(case, by_shape, plan, good)
        shutil.rmtree(tmp_path / "regions")
        _check(case, by_shape, plan, good)
        other = {name: np.concatenate([value, value]) for name, value in good.items()}
        with pytest.raises(
            CompileError, match=r"for another shape on onnxruntime: .*load the artifact"
        ):
            by_shape.run(plan, other, case.names)
        assert by_shape.copies == 1


def _skip_missing(targets: Sequence[str]) -> None:
    for text in targets:
        try:
            resolve(Target.parse(text))
        except TargetError as error:
            pytest.skip(str(error))

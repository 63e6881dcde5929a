"""Transposes are moved and cancelled before other runtimes read a model, and its numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from backends.conformance import BackendConformance
from backends.contract import Available, CompileContext, SubModel
from backends.mnn_backend import MnnBackend
from backends.moved_transposes import transposes_left, with_moved_transposes
from backends.ncnn_backend import NcnnBackend
from backends.openvino_backend import OpenVinoBackend
from backends.reference import run_reference
from backends.registry import resolve
from backends.sandbox import run_in_child
from backends.verify import output_error
from partitioner.graph_index import GraphIndex
from partitioner.model import Model
from partitioner.target import Target
from tests.channels_last import channels_last_model
from tests.models import seeded_input

TARGETS = ["openvino", "mnn", "ncnn"]


class TestOpenVinoMoved(BackendConformance):
    backend = OpenVinoBackend()
    target_options = "-transposes=moved"


class TestMnnMoved(BackendConformance):
    backend = MnnBackend()
    target_options = "-transposes=moved"


class TestNcnnMoved(BackendConformance):
    backend = NcnnBackend()
    target_options = "-transposes=moved"
    isolated = True


@pytest.fixture
def model(tmp_path: Path) -> SubModel:
    """Two convolutions with Transposes around each, and weights beside the file."""
    path = tmp_path / "model.onnx"
    proto = channels_last_model()
    onnx.save(proto, path, save_as_external_data=True, location="model.onnx.weights", size_threshold=0)
    index: GraphIndex = Model.open(path).index
    inputs, outputs = (tuple(index.values[n] for n in names) for names in (index.inputs, index.outputs))
    return SubModel(path, inputs, outputs)


def _transposes(path: Path) -> int:
    nodes = onnx.load(path, load_external_data=False).graph.node
    return sum(node.op_type == "Transpose" for node in nodes)


def test_those_between_convolutions_cancel(model: SubModel) -> None:
    assert _transposes(model.path) == 4
    assert run_in_child(transposes_left, model.path.resolve()) == 2


def test_only_who_asks_for_it_gets_the_rewritten_file_and_the_cache_keeps_it(
    model: SubModel, tmp_path: Path
) -> None:
    context = CompileContext(1, tmp_path / "work", tmp_path / "cache")
    for folder in (context.work_dir, context.cache_dir):
        assert folder is not None
        folder.mkdir()
    moved = Target.parse("openvino -transposes=moved")
    assert with_moved_transposes(model, Target.parse("openvino"), context) is model
    first = with_moved_transposes(model, moved, context)
    assert _transposes(first.path) == 2 and first.inputs == model.inputs
    made_at = first.path.stat().st_mtime_ns
    again = with_moved_transposes(model, moved, context)
    assert again.path == first.path and again.path.stat().st_mtime_ns == made_at
    # Converters key what they make by the weights too.
    assert (first.path.parent / f"{first.path.name}.weights").stat().st_size > 0


@pytest.mark.parametrize("name", TARGETS)
def test_every_runtime_computes_the_same_and_profiles_nodes_of_it(
    name: str, model: SubModel, tmp_path: Path
) -> None:
    target = Target.parse(f"{name} -transposes=moved")
    if not isinstance(resolve(target).probe(), Available):
        pytest.skip(f"{name} is not installed")
    error, named = run_in_child(_error, model, target, tmp_path.resolve())
    assert error < 1e-5
    known = {node.name for node in Model.open(model.path).index.nodes}
    assert named <= known and (named or name == "ncnn")


def _error(model: SubModel, target: Target, folder: Path) -> tuple[float, set[str]]:
    (spec,), (made,) = model.inputs, model.outputs
    given = seeded_input(spec.static_shape, "float32", 3)
    wanted = run_reference(model.path, {spec.name: given}, [made.name])[made.name]
    work = folder / target.backend
    work.mkdir()
    executable = resolve(target).compile(model, target, CompileContext(1, work))
    found = np.empty_like(wanted)
    executable.bind([given], [found])
    executable.run()
    named = {node for step in executable.profile(2) for node in step.nodes}
    executable.close()
    return output_error("max", [found], [wanted]), named

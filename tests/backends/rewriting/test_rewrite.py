"""Models are rewritten in an equal form before other runtimes read them, and their numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.backends.contract import Available, CompileContext, SubModel
from collage.backends.mnn.backend import MnnBackend
from collage.backends.ncnn.backend import NcnnBackend
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import run_reference
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.openvino.backend import OpenVinoBackend
from collage.backends.registry import resolve
from collage.backends.rewriting.rewrite import Changes, changes, rewritten
from collage.backends.sandbox.run import run_in_child
from collage.backends.testing.conformance import BackendConformance
from collage.partitioner.errors import TargetError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from tests.backends.rewriting.test_passes import group_norm
from tests.channels_last import channels_last_model
from tests.models import seeded_input

TARGETS = ["onnxruntime", "openvino", "mnn", "ncnn"]


class TestOnnxRuntimeRewritten(BackendConformance):
    backend = OnnxRuntimeBackend()
    target_options = "-rewrite=winograd"


@pytest.mark.slow
class TestOpenVinoRewritten(BackendConformance):
    backend = OpenVinoBackend()
    target_options = "-rewrite=winograd"


@pytest.mark.slow
class TestMnnRewritten(BackendConformance):
    backend = MnnBackend()
    target_options = "-rewrite=on"


@pytest.mark.slow
class TestNcnnRewritten(BackendConformance):
    backend = NcnnBackend()
    target_options = "-rewrite=on"
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


def test_layout_changes_between_convolutions_cancel(model: SubModel) -> None:
    assert _transposes(model.path) == 4
    assert run_in_child(changes, model.path.resolve()) == Changes(2)


def test_rewritten_file_is_made_on_request_and_cached(model: SubModel, tmp_path: Path) -> None:
    context = CompileContext(1, tmp_path / "work", tmp_path / "cache")
    for folder in (context.work_dir, context.cache_dir):
        assert folder is not None
        folder.mkdir()
    moved = Target.parse("openvino -rewrite=on")
    assert rewritten(model, Target.parse("openvino"), context) is model
    first = rewritten(model, moved, context)
    assert _transposes(first.path) == 2 and first.inputs == model.inputs
    made_at = first.path.stat().st_mtime_ns
    again = rewritten(model, moved, context)
    assert again.path == first.path and again.path.stat().st_mtime_ns == made_at
    # Converters key what they make by the weights too.
    assert (first.path.parent / f"{first.path.name}.weights").stat().st_size > 0


def _swishing(opset: int, alpha: float = 1 / 6) -> onnx.ModelProto:
    """One product with its own gate either way round, one with another value's, one gate that is read twice."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] gate) {{
        a = HardSigmoid <alpha: float = {alpha}, beta: float = 0.5> (x)
        b = Mul(x, a)
        c = HardSigmoid <alpha: float = {alpha}, beta: float = 0.5> (b)
        d = Mul(c, b)
        gate = HardSigmoid <alpha: float = {alpha}, beta: float = 0.5> (d)
        e = Mul(gate, d)
        y = Mul(e, gate)
    }}""")
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    return model


def _sub_model(proto: onnx.ModelProto, path: Path) -> SubModel:
    onnx.save(proto, path)
    index = Model.open(path).index
    inputs, outputs = (tuple(index.values[n] for n in names) for names in (index.inputs, index.outputs))
    return SubModel(path, inputs, outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opset", "swish"), [(17, ["HardSwish"]), (12, ["Add", "Clip", "Mul", "Mul"]), (10, [])]
)
def test_hard_swish_is_fused_where_the_opset_has_the_operator(
    opset: int, swish: list[str], tmp_path: Path
) -> None:
    model = _sub_model(_swishing(opset), tmp_path / "m.onnx")
    found = run_in_child(changes, model.path.resolve())
    assert found == Changes(0, {"swishes": 3} if swish else {})
    work = tmp_path / "work"
    work.mkdir()
    made = rewritten(model, Target.parse("openvino -rewrite=on"), CompileContext(1, work))
    ops = [node.op_type for node in onnx.load(made.path).graph.node]
    if swish:
        assert ops == [*swish, *swish, "HardSigmoid", *swish, "Mul"]
    onnx.checker.check_model(str(made.path), full_check=True)
    given = {"x": seeded_input((1, 4, 6, 6), "float32", 4) * 5}
    wanted = run_reference(model.path, given, ["y", "gate"])
    for name, value in run_reference(made.path, given, ["y", "gate"]).items():
        assert output_error("max", [value], [wanted[name]]) < 1e-6


def test_a_model_of_other_operators_alone_stays_as_it_is(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]>
    g (float[1, 4] x) => (float[1, 4] y) {
        y = ai.onnx.ml.Scaler <offset = [1.0, 1.0, 1.0, 1.0], scale = [2.0, 2.0, 2.0, 2.0]> (x)
    }""")
    onnx.save(model, tmp_path / "m.onnx")
    assert run_in_child(changes, (tmp_path / "m.onnx").resolve()) == Changes(0)


def test_another_gate_makes_no_hard_swish(tmp_path: Path) -> None:
    model = _sub_model(_swishing(17, alpha=0.2), tmp_path / "m.onnx")
    assert run_in_child(changes, model.path.resolve()) == Changes(0)


def test_a_runtime_gets_the_forms_that_it_was_faster_with(tmp_path: Path) -> None:
    """A group norm, which OpenVINO gets without Reshapes, and a wide convolution: three targets of one cache get three files."""
    proto = group_norm(2, "1, 8, 24, 24", 17)
    proto.graph.node.append(onnx.helper.make_node("Conv", ["y", "w"], ["wide"], name="wide"))
    proto.graph.node.append(onnx.helper.make_node("Conv", ["wide", "v"], ["z"], name="z"))
    for name, shape in (("w", (64, 8, 1, 1)), ("v", (64, 64, 3, 3))):
        weights = seeded_input(shape, "float32", 1)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [1, 64, 22, 22]))
    model = _sub_model(proto, tmp_path / "m.onnx")
    cache = tmp_path / "cache"
    cache.mkdir()
    kinds = []
    for target in ("onnxruntime -rewrite=on", "openvino -rewrite=on", "openvino -rewrite=winograd"):
        work = tmp_path / target.replace(" ", "")
        work.mkdir()
        made = rewritten(model, Target.parse(target), CompileContext(1, work, cache))
        found = {node.op_type for node in onnx.load(made.path).graph.node}
        kinds.append(("InstanceNormalization" in found, "MatMul" in found))
    assert kinds == [(True, False), (False, False), (False, True)]
    assert len(list(cache.glob("rewritten-*"))) == len(kinds)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("openvino -rewrite=winograd -precision=bf16", "needs float32"),
        ("openvino -rewrite=winograd -quant=static_int8", "needs float32"),
        ("onnxruntime -rewrite=winograd -quant=static_int8", "needs float32"),
        ("mnn -rewrite=winograd", "is one of off, on"),
    ],
)
def test_winograd_is_refused_where_it_makes_no_sense(target: str, reason: str) -> None:
    with pytest.raises(TargetError, match=reason):
        resolve(Target.parse(target))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_runtime_computes_and_profiles_the_rewritten_model(
    name: str, model: SubModel, tmp_path: Path
) -> None:
    target = Target.parse(f"{name} -rewrite=on")
    if not isinstance(resolve(target).probe(), Available):
        pytest.skip(f"{name} is not installed")
    error, named = run_in_child(_error, model, target, tmp_path.resolve())
    assert error < 1e-5
    known = {node.name for node in Model.open(model.path).index.nodes}
    assert named <= known and (named or name == "ncnn")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_time_of_winograd_steps_counts_for_their_convolution(name: str, tmp_path: Path) -> None:
    model = _sub_model(channels_last_model(channels=64, size=24), tmp_path / "m.onnx")
    target = Target.parse(f"{name} -rewrite=winograd")
    error, named = run_in_child(_error, model, target, tmp_path.resolve())
    assert error < 2e-5
    assert {"Conv_1", "Conv_7"} <= named


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

"""Decoders with a key-value cache, cut into partitions on two runtimes: tokens are ONNX Runtime's."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.artifact.state import State
from collage.backends.contract import SubModel
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from tests.decoders import Decoder, seeded, write_decoder

Array = np.ndarray
_PROMPTS = ([3, 4, 5, 6, 7], [9], [8, 8, 2, 30, 31, 32, 33, 1, 0])


class _Generator:
    """An executor with state, as a session drives it."""

    def __init__(
        self, model: Model, targets: Sequence[str], compiled: CompiledRegions, folder: Path
    ) -> None:
        index = model.index
        count, steps = len(index.nodes), []
        ends = [count * i // len(targets) for i in range(len(targets) + 1)]
        for i, (start, end) in enumerate(itertools.pairwise(ends)):
            part = extract(model, (1 << end) - (1 << start), folder / str(i))
            region = SubModel(part.path, part.inputs, part.outputs)
            executable = compiled.get(str(i), region, Target.parse(targets[i]))
            steps.append(Step(executable, region.inputs, region.outputs))
        inputs = [index.values[name] for name in index.inputs]
        self.executor = Executor(steps, inputs, index.outputs)
        outputs = [index.values[name] for name in index.outputs]
        dims = {
            value.name: {
                i: str(dim.value) for i, dim in enumerate(value.shape) if not isinstance(dim, int)
            }
            for value in model.ir.graph.inputs
            if value.name and value.shape
        }
        self.state = State(inputs, outputs, dims)
        self.state.bind("present.*", "past.*")
        self.executor.hand_over(self.state.names)
        self.executor.bind()

    def call(self, **given: Array) -> Array:
        return self.state.run(self._compute, None, given)[0]

    def _compute(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        self.executor.feed(feed)
        self.executor.run()
        return [self.executor.output(name) for name in names]


@pytest.fixture
def compiled() -> Iterator[CompiledRegions]:
    with contextlib.closing(CompiledRegions(1)) as made:
        yield made


def _reference(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [value.name for value in session.get_outputs()]
    empty = {
        v.name: np.zeros([1, v.shape[1], 0, v.shape[3]], np.float32) for v in session.get_inputs()[1:]
    }
    tokens: list[int] = []
    past, ids = empty, np.array([prompt])
    for _ in range(count):
        made = session.run(None, {"input_ids": ids, **past})
        past = {n.replace("present", "past"): v for n, v in zip(names[1:], made[1:], strict=True)}
        tokens.append(int(made[0][0].argmax()))
        ids = np.array([tokens[-1:]])
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "targets", [("onnxruntime",), ("openvino",), ("onnxruntime", "openvino", "onnxruntime")]
)
def test_tokens_are_those_of_onnx_runtime(
    targets: Sequence[str], compiled: CompiledRegions, tmp_path: Path
) -> None:
    path = write_decoder(tmp_path / "decoder.onnx", Decoder(), seeded())
    onnx.shape_inference.infer_shapes_path(path, tmp_path / "inferred.onnx")
    generator = _Generator(Model.open(tmp_path / "inferred.onnx"), targets, compiled, tmp_path)
    # Lengths come again, so that places are used; prompts differ, so that a stale one would show.
    for prompt in (*_PROMPTS, *_PROMPTS, _PROMPTS[0]):
        generator.state.reset()
        ids, tokens = np.array([prompt]), []
        for _ in range(8):
            tokens.append(int(generator.call(input_ids=ids)[0].argmax()))
            ids = np.array([tokens[-1:]])
        assert tokens == _reference(path, prompt, 8)


def test_a_batch_has_a_state_of_its_size(compiled: CompiledRegions, tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "decoder.onnx", Decoder(), seeded())
    onnx.shape_inference.infer_shapes_path(path, tmp_path / "inferred.onnx")
    generator = _Generator(Model.open(tmp_path / "inferred.onnx"), ["onnxruntime"], compiled, tmp_path)
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    whole = generator.call(input_ids=ids)
    generator.state.reset()
    for i in range(3):
        made = generator.call(input_ids=ids[:, i : i + 1])
    np.testing.assert_allclose(made, whole, rtol=1e-3, atol=1e-4)


def _merged(path: Path) -> None:
    """`y = old * 2 + x`, where a branch without the cache leaves `old` out; `present` grows in either."""

    def branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
        made = helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, 4])
        return helper.make_graph(nodes, name, [], [made])

    joined = helper.make_node("Concat", ["past.0", "doubled"], ["with"], name="join", axis=0)
    alone = helper.make_node("Identity", ["doubled"], ["without"], name="alone")
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"], name="double"),
        helper.make_node(
            "If",
            ["use_cache_branch"],
            ["present.0"],
            name="merged",
            then_branch=branch("with_past", [joined], "with"),
            else_branch=branch("no_past", [alone], "without"),
        ),
        helper.make_node("ReduceSum", ["present.0", "axes"], ["logits"], name="sum"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["length", 4]),
        helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]),
        helper.make_tensor_value_info("past.0", TensorProto.FLOAT, ["past", 4]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 4]),
        helper.make_tensor_value_info("present.0", TensorProto.FLOAT, ["present", 4]),
    ]
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    graph = helper.make_graph(nodes, "merged", inputs, outputs, [axes])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def test_a_merged_decoder_takes_its_branch(compiled: CompiledRegions, tmp_path: Path) -> None:
    _merged(tmp_path / "merged.onnx")
    model = Model.open(tmp_path / "merged.onnx")
    generator = _Generator(model, ["openvino", "onnxruntime", "openvino"], compiled, tmp_path)
    for _ in range(2):
        seen = np.zeros((0, 4), np.float32)
        for step in range(6):
            x = np.full((3 if step == 0 else 1, 4), step + 1, np.float32)
            seen = np.concatenate([seen, 2 * x])
            made = generator.call(x=x, use_cache_branch=np.array([step > 0]))
            np.testing.assert_allclose(made, seen.sum(axis=0, keepdims=True))
        generator.state.reset()

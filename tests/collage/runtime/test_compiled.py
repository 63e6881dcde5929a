"""Compiled sub-models: one that is refused leaves nothing behind that the next one trips over."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions, CompileError, in_short

ORT = Target.parse("onnxruntime")


def _model(path: Path, op_type: str) -> SubModel:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    return SubModel(path, (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),))


def test_compiles_on_after_a_refusal(tmp_path: Path) -> None:
    compiled = CompiledRegions(threads=1)
    try:
        with pytest.raises(CompileError, match="onnxruntime refused partition bad"):
            compiled.get("bad", _model(tmp_path / "bad.onnx", "NoSuchOperator"), ORT)
        assert not list(compiled._work_dir.iterdir())
        good = _model(tmp_path / "good.onnx", "Relu")
        assert compiled.get("good", good, ORT) is compiled.get("good", good, ORT)
    finally:
        compiled.close()


def test_short_lived_executable_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    model, target = _model(tmp_path / "model.onnx", "Relu"), Target.parse("openvino")
    cache = tmp_path / "cache"
    cache.mkdir()
    compiled = CompiledRegions(1, cache)
    try:
        compiled.get("short", model, target, lasting=False)
        assert not list(cache.rglob("*.blob"))
        compiled.drop("short", target)
        assert not list(compiled._work_dir.iterdir())
        compiled.get("lasting", model, target)
        assert list(cache.rglob("*.blob"))
    finally:
        compiled.close()


def test_error_text_leaves_out_the_place_in_the_source() -> None:
    said = "Exception from core.cpp:84:\nException from reader.cpp:148:\nUnable to read it.\n\n  Why: so.\n"
    assert in_short(RuntimeError(said)) == "Unable to read it. Why: so."
    assert in_short(MemoryError()) == "MemoryError"

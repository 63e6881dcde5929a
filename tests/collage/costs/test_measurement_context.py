"""How much memory a run of a model touches, and so how parts of it are measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.machine.hardware import hardware
from collage.costs.measurement_context import protocol_for, touched_bytes, weight_bytes, written_sizes
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize

_FLOATS = 1 << 16
_VALUE_BYTES = 4 * _FLOATS


def _chain(tmp_path: Path, products: int, ops: tuple[str, ...] = ()) -> Model:
    """Products of a row with one matrix, each followed by `ops`."""
    side = 256
    shape = [_FLOATS // side, side]
    nodes, last = [], "x"
    for i in range(products):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"p{i}"]))
        last = f"p{i}"
        for op in ops:
            nodes.append(helper.make_node(op, [last], [f"{op}{i}"]))
            last = f"{op}{i}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.eye(side, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    return Model.open(normalize(tmp_path / "model.onnx", tmp_path / "normalized", {}).path)


def test_weights_and_all_that_is_written_count(tmp_path: Path) -> None:
    model = _chain(tmp_path, 3)
    assert weight_bytes(model) == 4 * 256 * 256
    assert written_sizes(model) == [_VALUE_BYTES] * 4
    assert touched_bytes(model) == weight_bytes(model) + 4 * _VALUE_BYTES


def test_memory_of_values_is_used_again(tmp_path: Path) -> None:
    model = _chain(tmp_path, 40)
    assert len(written_sizes(model)) == 41
    assert touched_bytes(model) == weight_bytes(model) + 12 * _VALUE_BYTES


@pytest.mark.parametrize("op", ["Relu", "Identity"])
def test_fused_values_and_views_do_not_count_as_written(tmp_path: Path, op: str) -> None:
    assert len(written_sizes(_chain(tmp_path, 3, (op,)))) == 4


def test_parts_are_measured_with_as_much_evicted(tmp_path: Path) -> None:
    machine = replace(hardware(), last_level_cache_bytes=32 << 20)
    assert protocol_for(_chain(tmp_path, 1), machine).evict_bytes == 0  # it stays in the cache
    assert protocol_for(_chain(tmp_path, 30), machine).evict_bytes == 4 << 20

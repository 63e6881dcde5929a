"""Models opened without their weights are those that onnx-ir opens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from collage.partitioner.errors import ModelError
from collage.partitioner.graph.mapped_file import open_mapped
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests.collage.shapes import models as shape_models

_MIB = 1 << 20


def _large(path: Path, mib: int) -> Path:
    rows = mib * _MIB // 4 // 1024
    weight = np.random.default_rng(0).standard_normal((rows, 1024)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"], name="gather")],
        "large",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 1024])],
        [numpy_helper.from_array(weight, "table")],
    )
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def _normalized(model: onnx.ModelProto, folder: Path, dims: dict[str, int]) -> Path:
    onnx.save(model, folder / "source.onnx")
    return normalize(folder / "source.onnx", folder / "model", dims).path


def test_model_is_the_same_with_its_weights_in_the_file(tmp_path: Path) -> None:
    path = _large(tmp_path / "model.onnx", 1)
    mapped, whole = open_mapped(path), ir.load(path)
    table = mapped.graph.initializers["table"].const_value
    assert isinstance(table, ir.ExternalTensor)
    np.testing.assert_array_equal(
        table.numpy(),
        whole.graph.initializers["table"].const_value.numpy(),  # type: ignore[union-attr]
    )
    assert ir.to_proto(whole) == ir.to_proto(ir.external_data.load_to_model(mapped))


def test_digest_and_small_constants_do_not_depend_on_how_it_is_opened(tmp_path: Path) -> None:
    path = _normalized(shape_models.image(), tmp_path, {"batch": 1, "height": 8, "width": 8})
    mapped, whole = Model.open(path, mapped=True), Model.open(path)
    assert mapped.sha256 == whole.sha256
    assert mapped.index.constant_values.keys() == whole.index.constant_values.keys()


@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_linked_file_is_opened_too(tmp_path: Path, link: str) -> None:
    path = _large(tmp_path / "model.onnx", 1)
    (tmp_path / "other").mkdir()
    linked = tmp_path / "other" / "link.onnx"
    os.link(path, linked) if link == "hard" else linked.symlink_to(path)
    assert open_mapped(linked).graph.initializers["table"].const_value.numpy().shape == (256, 1024)  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"", b"no model at all\n" * 40, b"\x3a\xff\xff\x01"])
def test_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.onnx is not"):
        Model.open(tmp_path / "bad.onnx", mapped=True)


@pytest.mark.slow
def test_opening_takes_no_memory_for_weights(tmp_path: Path) -> None:
    path = _large(tmp_path / "model.onnx", 64)
    code = (
        "import sys; from pathlib import Path\n"
        "from collage.backends.machine.resident_memory import forget_peak, peak_bytes, resident_bytes\n"
        "from collage.partitioner.graph.model import Model\n"
        "import onnx, onnx_ir\n"
        "forget_peak(); before = resident_bytes()\n"
        "Model.open(Path(sys.argv[1]), mapped=True)\n"
        "print(peak_bytes() - before)\n"
    )
    words = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=Path.cwd())
    assert int(done.stdout) < 16 * _MIB

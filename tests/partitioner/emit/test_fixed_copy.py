"""A model file with sizes for its inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from collage.partitioner.emit.fixed_copy import write_fixed
from tests.collage.shapes import models as shape_models


def test_inputs_have_the_shapes_and_outputs_are_the_same(tmp_path: Path) -> None:
    onnx.save(onnx.shape_inference.infer_shapes(shape_models.chain()), tmp_path / "free.onnx")
    write_fixed(tmp_path / "free.onnx", [(2, 5, 8), (5,)], tmp_path / "fixed.onnx")
    fixed = onnxruntime.InferenceSession(tmp_path / "fixed.onnx")
    assert [node.shape for node in fixed.get_inputs()] == [[2, 5, 8], [5]]
    feed = {"x": np.ones((2, 5, 8), np.float32), "bias": np.arange(5, dtype=np.float32)}
    wanted = onnxruntime.InferenceSession(tmp_path / "free.onnx").run(None, feed)
    for mine, other in zip(fixed.run(None, feed), wanted, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_external_weights_go_along(tmp_path: Path) -> None:
    onnx.save(
        shape_models.image(),
        tmp_path / "free.onnx",
        save_as_external_data=True,
        location="free.onnx.weights",
        size_threshold=0,
    )
    (tmp_path / "fixed").mkdir()
    write_fixed(tmp_path / "free.onnx", [(1, 3, 6, 4)], tmp_path / "fixed" / "fixed.onnx")
    feed = {"x": np.ones((1, 3, 6, 4), np.float32)}
    made = [
        onnxruntime.InferenceSession(path).run(None, feed)[0]
        for path in (tmp_path / "free.onnx", tmp_path / "fixed" / "fixed.onnx")
    ]
    np.testing.assert_array_equal(*made)

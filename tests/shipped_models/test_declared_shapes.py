"""Shapes that a file declares of inner values and outputs, and that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.model.reference import Reference, ingest
from tests.shipped_models.test_ingest import saved


def declaring(path: Path, **shapes: list[int]) -> Path:
    """The file with declared shapes of float32 inner values."""
    proto = onnx.load(path)
    infos = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()]
    proto.graph.value_info.extend(infos)
    onnx.save(proto, path)
    return path


REBATCHED = """
    m (float[4, 6] x) => (float[1, 5] y)
    <float[6, 5] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0}> {
        a = Relu(x)
        s = Shape(a)
        b = Neg(a)
        c = Reshape(b, s)
        y = MatMul(c, w)
    }
"""


def test_shapes_of_another_batch_are_ignored_with_a_warning(tmp_path: Path) -> None:
    path = declaring(saved(REBATCHED, tmp_path), a=[1, 6], b=[1, 6])
    model, info = ingest(path, tmp_path)
    assert {name: model.index.values[name].shape for name in "aby"} == {
        "a": (4, 6),
        "b": (4, 6),
        "y": (4, 5),
    }
    (warning,) = [text for text in info.warnings if "contradict" in text]
    assert "'a' (declared (1, 6), really (4, 6))" in warning
    assert "'y' (declared (1, 5), really (4, 5))" in warning
    sample = {"x": np.arange(24, dtype=np.float32).reshape(4, 6)}
    (found,) = Reference(model, [sample], tmp_path / "r").values(["y"])
    weights = (np.arange(30, dtype=np.float32) + 1) % 10
    np.testing.assert_array_equal(found["y"], -sample["x"] @ weights.reshape(6, 5))


def test_wrong_rank_of_an_output_is_ignored(tmp_path: Path) -> None:
    path = saved("m (float[2, 3] x) => (float[6] y) { y = Relu(x) }", tmp_path)
    model, info = ingest(path, tmp_path)
    assert model.index.values["y"].shape == (2, 3)
    assert any("'y' (declared (6), really (2, 3))" in text for text in info.warnings)


@pytest.mark.parametrize(("declared", "taken"), [(2, None), (4, 4)])
def test_what_inference_leaves_open_is_proven_by_a_run(
    tmp_path: Path, declared: int, taken: int | None
) -> None:
    """No seeded value is zero, so that four positions come out."""
    text = f"m (float[4] x) => (int64[1, {declared}] y) {{ n = NonZero(x)  y = Neg(n) }}"
    model, info = ingest(saved(text, tmp_path), tmp_path)
    assert model.index.values["y"].shape == (1, taken)
    warned = [text for text in info.warnings if "contradict" in text]
    assert len(warned) == (taken is None)
    assert all(f"'y' (declared (1, {declared}), really (1, 4))" in text for text in warned)


def test_declared_shape_is_believed_where_no_run_tells(tmp_path: Path) -> None:
    """The seeded input is no shape, so that Reshape refuses it."""
    text = "m (float[6] x, int64[2] s) => (float[2, 3] y) { r = Reshape(x, s)  y = Relu(r) }"
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    assert model.index.values["y"].shape == (2, 3)


def test_inferred_types_reach_the_values_behind(tmp_path: Path) -> None:
    """ONNX knows nothing of the first node, and ONNX Runtime tells its shape."""
    text = """
        m (float[2, 8] x) => (float[k, 4] y) <float[8] g = {1, 1, 1, 1, 1, 1, 1, 1}, int64[2] s = {-1, 4}> {
            n = SimplifiedLayerNormalization<axis = -1, epsilon = 1e-5>(x, g)
            r = Relu(n)
            y = Reshape(r, s)
        }
    """
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    assert (model.index.values["r"].shape, model.index.values["y"].shape) == ((2, 8), (4, 4))

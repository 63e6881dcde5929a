"""Models as people have them on disk: linked in a cache of downloads or zipped by macOS."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.model.reference import Reference, ingest
from collage.partitioner.errors import ModelError
from collage.shapes.settle import settle
from tests.shipped_models.test_ingest import saved

WEIGHTS = np.arange(2048, dtype=np.float32)


def _external(folder: Path, size: str) -> tuple[Path, Path]:
    """A model and its data in a file beside it."""
    folder.mkdir(parents=True)
    path = saved(
        f"m (float[{size}, 2048] x, float[2048] w) => (float[{size}, 2048] y) {{ y = Add(x, w) }}",
        folder,
    )
    proto = onnx.load(path)
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    onnx.save(proto, path, save_as_external_data=True, location="model.onnx_data")
    return path, folder / "model.onnx_data"


def _downloaded(folder: Path, size: str = "1") -> Path:
    """The same as the cache of the Hugging Face client keeps it."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "1f"
    model, data = _external(blobs, size)
    model.rename(blobs / "aa")
    data.rename(blobs / "bb")
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "aa"), ("model.onnx_data", "bb")):
        (snapshot / name).symlink_to(Path("..", "..", "blobs", blob))
    return snapshot / "model.onnx"


def test_cache_of_downloads_is_read_through_its_links(tmp_path: Path) -> None:
    model, _ = ingest(_downloaded(tmp_path / "hub"), tmp_path)
    (found,) = Reference(model, [{"x": np.ones((1, 2048), np.float32)}], tmp_path / "r").values(["y"])
    np.testing.assert_array_equal(found["y"], WEIGHTS[None] + 1)


def test_sizes_of_a_linked_model_are_tried(tmp_path: Path) -> None:
    settled = settle(_downloaded(tmp_path / "hub", "n"), {"n": "1..4"})
    assert list(settled.space.dims) == ["n"]


def test_linked_model_has_its_data_beside_the_real_file(tmp_path: Path) -> None:
    path, _ = _external(tmp_path / "real", "1")
    (tmp_path / "current.onnx").symlink_to(path)
    model, _ = ingest(tmp_path / "current.onnx", tmp_path)
    assert "w" in model.index.constants


def test_data_linked_to_another_folder_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = _downloaded(tmp_path / "hub")
    data = path.with_name("model.onnx_data")
    data.resolve().rename(tmp_path / "elsewhere")
    data.unlink()
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"'model\.onnx_data' is a symbolic link to another folder"):
        ingest(path, tmp_path)


def test_zip_of_macos_is_taken(tmp_path: Path) -> None:
    model, data = _external(tmp_path / "m", "1")
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for file in (model, data):
            archive.write(file, f"m/{file.name}")
            archive.writestr(f"__MACOSX/m/._{file.name}", b"\0\5\x16\7")
        archive.writestr("m/._m.onnx", b"\0\5\x16\7")
    found, _ = ingest(tmp_path / "m.zip", tmp_path)
    assert "w" in found.index.constants


@pytest.mark.parametrize("place", ["branch", "constant"])
def test_unsorted_model_may_have_data_beside_it_for_inner_tensors(place: str, tmp_path: Path) -> None:
    """ONNX's checker knows only the main graph's weights in other files."""
    inner = "w = Constant<value = float[1] {0.0}>()" if place == "constant" else ""
    path = saved(
        f"""
        m (float[2048] x, bool c) => (float[2048] y) {{
            y = Neg(b)
            b = If(c) <
                then_branch = t () => (float[2048] o) {{ {inner} o = Add(x, w) }},
                else_branch = e () => (float[2048] p) {{ p = Abs(x) }}
            >
        }}
        """,
        tmp_path,
    )
    proto = onnx.load(path)
    branch = next(a.g for a in proto.graph.node[1].attribute if a.name == "then_branch")
    tensor = branch.node[0].attribute[0].t if place == "constant" else branch.initializer.add()
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.data_location = "w", 1, onnx.TensorProto.EXTERNAL
    tensor.dims.append(2048)
    tensor.external_data.add(key="location", value="sub/w.bin")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(WEIGHTS.tobytes())
    path.write_bytes(proto.SerializeToString())
    model, _ = ingest(path, tmp_path)
    given = {"x": np.ones(2048, np.float32), "c": np.array(True)}
    (found,) = Reference(model, [given], tmp_path / "r").values(["y"])
    np.testing.assert_array_equal(found["y"], -(WEIGHTS + 1))

"""Hostile and broken sources: each is a ModelError with the reason, and reads no other file."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest import source as ingest_source
from collage.partitioner.ingest.normalize import normalize
from tests import models
from tests.partitioner.running import run


def _refused(source: Path, tmp_path: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        normalize(source, tmp_path / "out", {})
    assert not (tmp_path / "out" / "model.onnx").exists()
    assert not (tmp_path / "out" / ".source").exists()


def _value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(
    nodes: list[onnx.NodeProto], *initializers: TensorProto, domain: str = ""
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [_value("x", 4)], [_value("y", 4)], list(initializers))
    imports = [helper.make_opsetid("", 21)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _saved(path: Path, proto: onnx.ModelProto) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


class TestDamaged:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        _refused(tmp_path / "nothing.onnx", tmp_path, "no model file")

    @pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 100, b"PK\x03\x04", b"\x08\x07"])
    def test_bytes_that_are_no_model_are_refused(self, tmp_path: Path, data: bytes) -> None:
        source = tmp_path / "m.onnx"
        source.write_bytes(data)
        _refused(source, tmp_path, "not an ONNX model|cannot be unpacked|checker refuses")

    def test_random_bytes(self, tmp_path: Path) -> None:
        for seed in range(30):
            (tmp_path / "m.onnx").write_bytes(random.Random(seed).randbytes(500))
            _refused(tmp_path / "m.onnx", tmp_path, "ONNX")

    @pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
    def test_truncated(self, tmp_path: Path, part: float) -> None:
        data = models.model_path("ppocr_cls").read_bytes()
        (tmp_path / "m.onnx").write_bytes(data[: int(len(data) * part)])
        _refused(tmp_path / "m.onnx", tmp_path, "ONNX|ONNX checker")

    def test_flipped_bytes_never_raise_anything_else(self, tmp_path: Path) -> None:
        data = bytearray(models.model_path("light_squeezenet").read_bytes())
        for seed in range(10):
            changed, generator = bytearray(data), random.Random(seed)
            for _ in range(3):
                changed[generator.randrange(len(changed))] = generator.randrange(256)
            (tmp_path / "m.onnx").write_bytes(changed)
            try:
                normalize(tmp_path / "m.onnx", tmp_path / "out", {})
            except ModelError as error:
                assert len(str(error)) > 10

    def test_too_little_data_in_a_tensor(self, tmp_path: Path) -> None:
        short = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"1234")
        proto = _model([helper.make_node("Add", ["x", "w"], ["y"])], short)
        _refused(_saved(tmp_path / "m.onnx", proto), tmp_path, "'w' .* needs 16 bytes and has 4")


class TestBombs:
    @pytest.mark.parametrize("dims", [(1 << 35,), (1 << 20, 1 << 20), (1 << 40,)])
    def test_a_tiny_model_that_asks_for_a_huge_constant(
        self, tmp_path: Path, dims: tuple[int, ...]
    ) -> None:
        shape = helper.make_tensor("s", TensorProto.INT64, [len(dims)], dims)
        nodes = [
            helper.make_node("ConstantOfShape", ["s"], ["c"], name="fill"),
            helper.make_node("ReduceMax", ["c"], ["m"], keepdims=0),
            helper.make_node("Add", ["x", "m"], ["y"]),
        ]
        source = _saved(tmp_path / "m.onnx", _model(nodes, shape))
        assert source.stat().st_size < 200
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _refused(source, tmp_path, r"'fill' \(ConstantOfShape\) asks for a constant of \d+ bytes")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10

    def test_a_huge_intermediate_value(self, tmp_path: Path) -> None:
        shape = helper.make_tensor("s", TensorProto.INT64, [2], [1 << 34, 4])
        nodes = [
            helper.make_node("Expand", ["x", "s"], ["big"], name="grow"),
            helper.make_node("ReduceMax", ["big"], ["y"], axes=None, keepdims=0),
        ]
        proto = _model(nodes, shape)
        proto.graph.output[0].CopyFrom(_value("y"))
        _refused(_saved(tmp_path / "m.onnx", proto), tmp_path, "'big' of node 'grow' .* bytes; at most")

    @pytest.mark.slow
    def test_out_of_memory_is_an_error_of_the_model(self, tmp_path: Path) -> None:
        code = f"""
            import resource, sys
            from pathlib import Path
            from collage.partitioner.errors import ModelError
            from collage.partitioner.ingest.normalize import normalize
            import onnxscript.optimizer
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + (128 << 20), now + (128 << 20)))
            source, out = Path({str(models.model_path("light_vgg19"))!r}), Path({str(tmp_path)!r})
            try:
                normalize(source, out, {{}})
            except ModelError as error:
                print(error)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert "more memory than ingest may use" in done.stdout, done.stderr

    def test_sparse_tensors(self, tmp_path: Path) -> None:
        values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
        indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
        proto = _model([helper.make_node("Add", ["x", "v"], ["y"])])
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1 << 40]))
        _refused(_saved(tmp_path / "m.onnx", proto), tmp_path, "sparse")


class TestOperators:
    def test_an_unknown_domain_is_named(self, tmp_path: Path) -> None:
        proto = _model(
            [helper.make_node("Magic", ["x"], ["y"], "wand", domain="my.ops")], domain="my.ops"
        )
        _refused(
            _saved(tmp_path / "m.onnx", proto),
            tmp_path,
            r"'wand' \(Magic of domain 'my.ops'\).*com.microsoft",
        )

    def test_an_unknown_operator_is_named(self, tmp_path: Path) -> None:
        proto = _model([helper.make_node("Magic", ["x"], ["y"], "wand")])
        _refused(_saved(tmp_path / "m.onnx", proto), tmp_path, "Magic")

    def test_microsoft_operators_are_taken(self, tmp_path: Path) -> None:
        domain = "com.microsoft"
        proto = _model([helper.make_node("Gelu", ["x"], ["y"], "g", domain=domain)], domain=domain)
        info = normalize(_saved(tmp_path / "m.onnx", proto), tmp_path / "out", {})
        assert [node.op for node in Model.open(info.path).index.nodes] == ["com.microsoft::Gelu"]

    def test_compiled_blobs_are_refused_in_bodies_too(self, tmp_path: Path) -> None:
        inner = helper.make_node("EPContext", [], ["t"], "blob", domain="com.microsoft")
        body = helper.make_graph([inner], "b", [], [_value("t", 4)])
        node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
        proto = _model([node], domain="com.microsoft")
        _refused(_saved(tmp_path / "m.onnx", proto), tmp_path, r"'blob' \(EPContext")


class TestExternalData:
    """The model's weight points at a file that is not its own."""

    def _proto(self, location: str, length: int = 16, offset: int = 0) -> onnx.ModelProto:
        weight = TensorProto(
            name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
        )
        for key, value in [("location", location), ("offset", offset), ("length", length)]:
            weight.external_data.add(key=key, value=str(value))
        return _model([helper.make_node("Add", ["x", "w"], ["y"])], weight)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "in").mkdir()
        (tmp_path / "secret").write_bytes(bytes(64))
        return tmp_path / "in"

    @pytest.mark.parametrize("location", ["../secret", "a/../../secret", "..\\secret", "", ".."])
    def test_a_path_that_climbs_out(self, tmp_path: Path, folder: Path, location: str) -> None:
        _refused(_saved(folder / "m.onnx", self._proto(location)), tmp_path, "plain path in the model")

    def test_an_absolute_path(self, tmp_path: Path, folder: Path) -> None:
        proto = self._proto(str(tmp_path / "secret"))
        _refused(_saved(folder / "m.onnx", proto), tmp_path, "plain path in the model")

    def test_a_symbolic_link(self, tmp_path: Path, folder: Path) -> None:
        (folder / "w.bin").symlink_to(tmp_path / "secret")
        _refused(_saved(folder / "m.onnx", self._proto("w.bin")), tmp_path, "symbolic link")

    def test_a_link_in_the_middle(self, tmp_path: Path, folder: Path) -> None:
        (folder / "d").symlink_to(tmp_path)
        _refused(_saved(folder / "m.onnx", self._proto("d/secret")), tmp_path, "symbolic link")

    def test_a_hard_link(self, tmp_path: Path, folder: Path) -> None:
        os.link(tmp_path / "secret", folder / "w.bin")
        _refused(_saved(folder / "m.onnx", self._proto("w.bin")), tmp_path, "several hard links")

    def test_a_missing_file(self, tmp_path: Path, folder: Path) -> None:
        _refused(_saved(folder / "m.onnx", self._proto("w.bin")), tmp_path, "missing; send .* one zip")

    @pytest.mark.parametrize(("length", "offset"), [(16, 60), (8, 0), (64, 0), (16, -4), (16, 1 << 62)])
    def test_a_place_outside_the_file(
        self, tmp_path: Path, folder: Path, length: int, offset: int
    ) -> None:
        (folder / "w.bin").write_bytes(bytes(64))
        proto = self._proto("w.bin", length, offset)
        _refused(_saved(folder / "m.onnx", proto), tmp_path, "does not fit in external data 'w.bin'")

    def test_in_the_tensor_of_a_constant_in_a_body(self, tmp_path: Path, folder: Path) -> None:
        weight = self._proto("../secret").graph.initializer[0]
        body = helper.make_graph(
            [helper.make_node("Constant", [], ["w"], value=weight)], "b", [], [_value("w", 4)]
        )
        node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
        _refused(_saved(folder / "m.onnx", _model([node])), tmp_path, "plain path in the model")

    def test_external_data_beside_the_model_is_read(self, tmp_path: Path, folder: Path) -> None:
        (folder / "w.bin").write_bytes(bytes(4) + np.arange(4, dtype=np.float32).tobytes())
        info = normalize(
            _saved(folder / "m.onnx", self._proto("w.bin", offset=4)), tmp_path / "out", {}
        )
        assert run(info.path, {"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]


class TestZips:
    def _zip(self, path: Path, files: dict[str, bytes]) -> Path:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path

    def _relu(self) -> bytes:
        return _model([helper.make_node("Relu", ["x"], ["y"])]).SerializeToString()

    def test_a_model_with_its_data(self, tmp_path: Path) -> None:
        proto = TestExternalData()._proto("data/w.bin").SerializeToString()
        data = np.arange(4, dtype=np.float32).tobytes()
        source = self._zip(tmp_path / "m.zip", {"model/m.onnx": proto, "model/data/w.bin": data})
        info = normalize(source, tmp_path / "out", {})
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["model.onnx"]
        assert run(info.path, {"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize("name", ["../m.onnx", "/m.onnx", "a/../../m.onnx", "C:\\m.onnx"])
    def test_names_that_climb_out(self, tmp_path: Path, name: str) -> None:
        _refused(
            self._zip(tmp_path / "m.zip", {name: self._relu()}), tmp_path, "points outside the zip"
        )

    def test_links(self, tmp_path: Path) -> None:
        link = zipfile.ZipInfo("w.bin")
        link.external_attr = 0o120777 << 16
        source = self._zip(tmp_path / "m.zip", {"m.onnx": self._relu()})
        with zipfile.ZipFile(source, "a") as archive:
            archive.writestr(link, "/etc/passwd")
        _refused(source, tmp_path, "'w.bin' is a link")

    @pytest.mark.parametrize("files", [{}, {"a.txt": b"a"}, {"a.onnx": b"a", "b.onnx": b"b"}])
    def test_not_exactly_one_model(self, tmp_path: Path, files: dict[str, bytes]) -> None:
        _refused(self._zip(tmp_path / "m.zip", files), tmp_path, "exactly one .onnx")

    def test_a_zip_bomb(self, tmp_path: Path) -> None:
        source = self._zip(tmp_path / "m.zip", {"m.onnx": self._relu(), "w.bin": bytes(32 << 20)})
        _refused(source, tmp_path, "times its size")

    def test_too_many_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ingest_source, "MAX_ENTRIES", 3)
        source = self._zip(tmp_path / "m.zip", {f"{i}.bin": b"a" for i in range(4)})
        _refused(source, tmp_path, "has 4 files; at most 3")

    def test_a_damaged_zip(self, tmp_path: Path) -> None:
        source = self._zip(tmp_path / "m.zip", {"m.onnx": self._relu()})
        data = bytearray(source.read_bytes())
        data[45] ^= 0xFF
        source.write_bytes(data)
        _refused(source, tmp_path, "cannot be unpacked")

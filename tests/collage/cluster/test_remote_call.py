"""Calls for workers, and the files of a worker."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath

import pytest

from collage.backends.sandbox.codec import decode, encode
from collage.backends.sandbox.limits import ChildLimits
from collage.cluster.remote_call import Packer, RemoteCall, map_paths
from collage.cluster.worker_files import WorkerFiles
from collage.partitioner.errors import CollageError
from tests.backends.sandbox.child_tasks import copy_beside


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> WorkerFiles:
    return WorkerFiles(tmp_path / "worker", 1000)


def _put(files: WorkerFiles, content: bytes) -> str:
    digest = _sha256(content)
    files.put("run", digest, 0, content, True)
    return digest


def test_remote_call_names_files_by_content_with_their_neighbors(tmp_path: Path) -> None:
    given, folder = tmp_path / "given", tmp_path / "made"
    given.mkdir()
    folder.mkdir()
    (given / "model.onnx").write_bytes(b"model")
    (given / "weights").write_bytes(b"weights")
    packer = Packer("run")
    remote_call = packer.pack(copy_beside, (given / "model.onnx", folder), ChildLimits())
    assert remote_call.places == {
        "0": {"model.onnx": _sha256(b"model"), "weights": _sha256(b"weights")}
    }
    assert {digest: path.name for digest, path in packer.files.items()} == {
        _sha256(b"model"): "model.onnx",
        _sha256(b"weights"): "weights",
    }
    again = decode(encode(remote_call))
    assert isinstance(again, RemoteCall)
    (file, written), limits = decode(again.content)
    assert file == PurePosixPath("places/0/model.onnx") and limits == ChildLimits()
    assert packer.local(written / "new.bin") == folder / "new.bin"
    assert str(tmp_path) not in repr(again.content), "where files lie here is nobody's business"
    (given / "model.onnx").write_bytes(b"another model")
    remote_call = packer.pack(copy_beside, (given / "model.onnx", folder), ChildLimits())
    assert remote_call.places["0"]["model.onnx"] == _sha256(b"another model")


def test_tokens_never_lead_outside(tmp_path: Path, files: WorkerFiles) -> None:
    packer = Packer("run")
    folder = packer.pack(copy_beside, (tmp_path,), ChildLimits())
    ((token,), _) = decode(folder.content)
    assert packer.local(token / ".." / ".." / "etc") == tmp_path
    assert packer.local(PurePosixPath("/etc/passwd")) == PurePosixPath("/etc/passwd")
    with files.laid_out({}) as base:
        assert base is not None
        for bad in ("places/0/../../x", "folders/../x", "elsewhere/0", "folders/a b/x"):
            with pytest.raises(CollageError):
                files.here(base, "run", PurePosixPath(bad))


def test_function_that_cannot_be_found_by_name_is_refused() -> None:
    with pytest.raises(ValueError, match="importable module"):
        Packer("run").pack(ChildLimits.__eq__, (), ChildLimits())


def test_paths_are_found_in_every_plain_container() -> None:
    limits = ChildLimits(writable=(Path("a"),))
    value = {"x": [Path("a"), (Path("a"), {Path("a")})], "y": limits, "z": "a"}
    changed = map_paths(value, lambda path: Path("b"))
    wanted = ChildLimits(writable=(Path("b"),))
    assert changed == {"x": [Path("b"), (Path("b"), {Path("b")})], "y": wanted, "z": "a"}


def test_blobs_arrive_whole_or_not_at_all(files: WorkerFiles) -> None:
    content = b"x" * 30
    digest = _sha256(content)
    files.put("run", digest, 0, content[:20], False)
    assert files.lacks([digest]) == (digest,)
    with pytest.raises(CollageError, match=r"a piece of file .* is missing"):
        files.put("run", digest, 25, content[25:], True)
    files.put("run", digest, 20, content[20:], True)
    assert files.lacks([digest]) == () and files.read(digest, 0) == content
    wrong = _sha256(b"else")
    with pytest.raises(CollageError, match="arrived with other bytes"):
        files.put("run", wrong, 0, content, True)
    assert files.lacks([wrong]) == (wrong,)
    with pytest.raises(CollageError, match="is not a SHA-256"):
        files.lacks(["../../etc/passwd"])


def test_least_used_blobs_are_deleted_first(files: WorkerFiles) -> None:
    first, second = _put(files, b"a" * 400), _put(files, b"b" * 400)
    with files.laid_out({"0": {"b": second}}):
        os.utime(files.folder / "blobs" / first, (1, 1))
    third = _put(files, b"c" * 400)
    assert files.lacks([first, second, third]) == (first,)


def test_a_call_s_files_are_laid_out_and_gone_afterward(files: WorkerFiles) -> None:
    digest = _put(files, b"weights")
    with files.laid_out({"0": {"weights": digest, "gone": _sha256(b"gone")}}) as base:
        assert base is None
    with files.laid_out({"0": {"weights": digest}}) as base:
        assert base is not None
        assert files.here(base, "run", PurePosixPath("places/0/weights")).read_bytes() == b"weights"
        folder = files.here(base, "run", PurePosixPath("folders/f"))
        assert folder.is_dir()
    assert not base.exists() and folder.is_dir()
    for bad in ("../evil", "a/b"):
        with (
            pytest.raises(CollageError, match="not the name of a file"),
            files.laid_out({"0": {bad: digest}}),
        ):
            pass
    files.forget("run")
    assert not folder.exists()


def test_only_files_of_the_run_s_folders_come_back(files: WorkerFiles, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    with files.laid_out({}) as base:
        assert base is not None
        folder = files.here(base, "run", PurePosixPath("folders/f"))
    (folder / "made").write_bytes(b"made")
    (folder / "link").symlink_to(secret)
    token, kept = files.keep("run", folder / "made")
    assert token == PurePosixPath("folders/f/made")
    assert kept == {"folders/f/made": _sha256(b"made")}
    for outside in (folder / "link", secret, folder / ".." / ".." / ".." / "blobs"):
        assert files.keep("run", outside) == (outside, {})


def test_files_of_a_dead_tuner_are_deleted(files: WorkerFiles) -> None:
    with files.laid_out({}) as base:
        assert base is not None
        old = files.here(base, "old", PurePosixPath("folders/f"))
        new = files.here(base, "new", PurePosixPath("folders/f"))
    os.utime(old.parent, (1, 1))
    files.tidy()
    assert not old.exists() and new.exists()

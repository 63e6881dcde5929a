"""Blobs: by content, whole or not at all, and nowhere but in the store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from collage.service.storage.blobs import BlobFiles, BlobMissingError, UploadTooLargeError
from collage.service.storage.spool import Spool


@pytest.fixture
def files(tmp_path: Path) -> BlobFiles:
    return BlobFiles((tmp_path / "blobs").as_uri(), tmp_path / "spool")


def test_a_blob_is_known_by_its_content(files: BlobFiles, tmp_path: Path) -> None:
    data = b"some bytes" * 1000
    blob = files.keep_bytes(data)
    assert blob.sha256 == hashlib.sha256(data).hexdigest()
    assert blob.size_bytes == len(data) == files.size_bytes(blob.sha256)
    assert b"".join(files.chunks(blob.sha256)) == data == files.read(blob.sha256)
    assert files.keep_bytes(data) == blob
    files.copy_to(blob.sha256, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert files.keep_file(tmp_path / "copy") == blob
    assert not list((tmp_path / "spool").iterdir()), "nothing may stay behind"


def test_too_much_is_refused_and_nothing_stays(files: BlobFiles, tmp_path: Path) -> None:
    with pytest.raises(UploadTooLargeError, match="10 bytes"), files.writer(limit_bytes=10) as writer:
        writer.write(b"12345678")
        writer.write(b"12345678")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_missing_blob_is_said_to_be_missing(files: BlobFiles) -> None:
    gone = files.keep_bytes(b"x").sha256
    files.delete(gone)
    files.delete(gone)
    with pytest.raises(BlobMissingError):
        files.read(gone)
    with pytest.raises(BlobMissingError):
        files.size_bytes(gone)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a" * 63, "A" * 64, "", f"{'a' * 64}\n", "/etc/passwd"]
)
def test_only_hashes_are_names(files: BlobFiles, name: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal"):
        files.read(name)


def test_blobs_may_lie_in_anything_fsspec_knows(tmp_path: Path) -> None:
    files = BlobFiles("memory://bucket/prefix", tmp_path)
    blob = files.keep_bytes(b"far away")
    assert files.read(blob.sha256) == b"far away"
    files.delete(blob.sha256)
    with pytest.raises(BlobMissingError):
        files.read(blob.sha256)


def test_a_spool_is_cleaned_after_its_process_died(tmp_path: Path) -> None:
    living = Spool(tmp_path)
    (living.path / "upload").write_bytes(b"x")
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "upload").write_bytes(b"x")
    (tmp_path / "dead.lock").touch()
    another = Spool(tmp_path)
    assert not dead.exists() and not (tmp_path / "dead.lock").exists()
    assert (living.path / "upload").exists()
    another.close()
    living.close()
    assert not list(tmp_path.iterdir())

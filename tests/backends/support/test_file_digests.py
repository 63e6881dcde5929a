"""Digests of files are remembered, and never of another content."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from collage.backends.support import file_digests
from collage.backends.support.file_digests import remember_digest, remembered_digest


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were read to the end."""
    seen: list[Path] = []
    real = file_digests.file_digest

    def noted(path: Path) -> str:
        seen.append(path)
        return real(path)

    monkeypatch.setattr(file_digests, "file_digest", noted)
    return seen


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute later than the files were written."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 60_000_000_000)


def test_a_file_is_read_once(tmp_path: Path, settle: None, read: list[Path]) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    cache = tmp_path / "cache"
    cache.mkdir()
    assert [remembered_digest(file, cache) for _ in range(3)] == [_sha256(b"abc")] * 3
    assert read == [file]


def test_a_change_of_equal_size_and_time_is_seen(tmp_path: Path, settle: None) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    assert remembered_digest(file, tmp_path) == _sha256(b"abc")
    before = file.stat()
    time.sleep(0.05)  # several ticks of the kernel's clock
    file.write_bytes(b"abd")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remembered_digest(file, tmp_path) == _sha256(b"abd")


def test_a_file_written_just_now_is_not_remembered(tmp_path: Path, read: list[Path]) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    cache = tmp_path / "cache"
    cache.mkdir()
    assert [remembered_digest(file, cache) for _ in range(2)] == [_sha256(b"abc")] * 2
    assert read == [file, file]


def test_a_file_in_the_cache_is_remembered_at_once(tmp_path: Path, read: list[Path]) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    assert [remembered_digest(file, tmp_path) for _ in range(2)] == [_sha256(b"abc")] * 2
    assert read == [file]


def test_what_was_remembered_since_another_start_does_not_count(
    tmp_path: Path, settle: None, read: list[Path]
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    for since in ("first", "first", "second"):
        assert remembered_digest(file, tmp_path, since) == _sha256(b"abc")
    assert read == [file, file]
    remember_digest(file, _sha256(b"abc"), tmp_path, "third")
    assert remembered_digest(file, tmp_path, "third") == _sha256(b"abc")
    assert read == [file, file]


def test_note_of_the_right_length_that_is_no_digest_is_damaged(tmp_path: Path, settle: None) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    remembered_digest(file, tmp_path)
    (note,) = (tmp_path / "digests").iterdir()
    note.write_bytes(b"\0" * 64)  # as a machine that crashed may leave it
    assert remembered_digest(file, tmp_path) == _sha256(b"abc")


def test_a_damaged_or_unwritable_cache_costs_only_time(tmp_path: Path, settle: None) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    assert remembered_digest(file, tmp_path / "absent") == _sha256(b"abc")
    remembered_digest(file, tmp_path)
    (note,) = (tmp_path / "digests").iterdir()
    note.write_text("half of", encoding="utf-8")
    assert remembered_digest(file, tmp_path) == _sha256(b"abc")
    assert note.read_text(encoding="utf-8") == _sha256(b"abc")

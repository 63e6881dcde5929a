"""Memory that can be given back is given back, and nothing is lost."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from collage.backends.machine.resident_memory import release_pages, resident_bytes

_BYTES = 32 << 20


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # the kernel lets go of clean pages only


def _is_on_disk(folder: Path) -> bool:
    """Whether files there are more than memory."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    kind = {mount: kind for _, mount, kind, *_ in mounts}
    return kind[next(str(p) for p in (folder, *folder.parents) if str(p) in kind)] not in (
        "tmpfs",
        "ramfs",
    )


@pytest.mark.slow
@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_released_pages_are_read_again(tmp_path: Path, access: int) -> None:
    content = bytes(range(256)) * (_BYTES // 256)
    _write(tmp_path / "weights", content)
    with (tmp_path / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=access) as data:
        if access == mmap.ACCESS_COPY:
            data[:4] = b"mine"  # what is written is the process's own
        before = sum(data[i] for i in range(0, _BYTES, mmap.PAGESIZE))
        held = resident_bytes()
        release_pages(tmp_path)
        if access == mmap.ACCESS_READ and _is_on_disk(tmp_path):
            assert held - resident_bytes() > _BYTES // 2
        assert sum(data[i] for i in range(0, _BYTES, mmap.PAGESIZE)) == before


def test_pages_of_other_folders_stay(tmp_path: Path) -> None:
    _write(tmp_path / "weights", bytes(_BYTES))
    with (
        (tmp_path / "weights").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        sum(data[i] for i in range(0, _BYTES, mmap.PAGESIZE))
        held = resident_bytes()
        release_pages(tmp_path / "other")
        assert held - resident_bytes() < _BYTES // 2

"""Memory that can be given back is given back, and nothing is lost."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from collage.backends.machine.resident_memory import release_pages, resident_bytes

_BYTES = 32 << 20


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_released_pages_are_read_again(tmp_path: Path, access: int) -> None:
    content = bytes(range(256)) * (_BYTES // 256)
    (tmp_path / "weights").write_bytes(content)
    with (tmp_path / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=access) as data:
        if access == mmap.ACCESS_COPY:
            data[:4] = b"mine"  # what is written is the process's own
        before = sum(data[i] for i in range(0, _BYTES, mmap.PAGESIZE))
        held = resident_bytes()
        release_pages(tmp_path)
        if access == mmap.ACCESS_READ:
            assert held - resident_bytes() > _BYTES // 2
        assert sum(data[i] for i in range(0, _BYTES, mmap.PAGESIZE)) == before


def test_pages_of_other_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(_BYTES))
    with (
        (tmp_path / "weights").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        sum(data[i] for i in range(0, _BYTES, mmap.PAGESIZE))
        held = resident_bytes()
        release_pages(tmp_path / "other")
        assert held - resident_bytes() < _BYTES // 2

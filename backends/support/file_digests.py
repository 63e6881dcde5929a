"""SHA-256 of a file, remembered in a cache folder while the file system says that the file is the same.

A file with the same device, inode, size and times has the same content: the kernel sets the time of
change (ctime), and no program sets it back. Two changes within one tick of that clock look alike, so
the digest of a file that has just changed is not remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path

from collage.partitioner.file_digest import file_digest

_FOLDER = "digests"
_SETTLED_NS = 2_000_000_000
_LENGTH = 64


def files_of(model: Path) -> list[Path]:
    """A model's file, and the file of external weights where there is one."""
    beside = model.with_name(f"{model.name}.weights")
    return [model, beside] if beside.is_file() else [model]


def remembered_digest(path: Path, cache_dir: Path) -> str:
    """SHA-256 of a file's bytes as hex text, remembered where the file has not changed.

    Args:
        cache_dir: where digests are kept; writable only by whom the caller trusts.

    Raises:
        OSError: the file cannot be read.
    """
    identity = _identity(path)
    note = cache_dir / _FOLDER / hashlib.sha256(repr(identity).encode()).hexdigest()
    with contextlib.suppress(OSError):
        known = note.read_text(encoding="ascii")
        if len(known) == _LENGTH:
            return known
    digest = file_digest(path)
    settled = time.time_ns() - max(identity[-2:]) > _SETTLED_NS
    if settled and _identity(path) == identity:
        with contextlib.suppress(OSError):
            note.parent.mkdir(exist_ok=True)
            note.write_text(digest, encoding="ascii")
    return digest


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

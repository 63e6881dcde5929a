"""SHA-256 of a file, remembered in a cache folder for as long as the file system says that the file is the same.

Whose device, inode, size and times of last change are as before has its content as before: the time of change
(ctime) is the kernel's, and no program sets it back. Two changes within one tick of that clock would look alike,
so a file that changed a moment before it was read is not remembered, but read again the next time.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path

from collage.partitioner.graph.weights import file_digest

_FOLDER = "digests"
_SETTLED_NS = 2_000_000_000
_LENGTH = 64


def remembered_digest(path: Path, cache_dir: Path) -> str:
    """SHA-256 of a file's bytes as hex text, without reading a file that was read before.

    Args:
        path: the file.
        cache_dir: where digests are kept; it must be writable by nobody whom the caller does not trust.

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

"""SHA-256 of a file, remembered in a cache folder while the file system says that the file is the same.

A file with the same device, inode, size and times has the same content: the kernel sets the time of
change (ctime), and no program sets it back. Two changes within one tick of that clock look alike, so
the digest of a file that has just changed is not remembered. Files in the cache folder itself never change.

A machine that crashes may leave a file without what was written last, and with the times of it. So what must
not be wrong is remembered until the next start of the machine only (`boot`).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from functools import lru_cache
from pathlib import Path

from collage.partitioner.file_digest import file_digest

_FOLDER = "digests"
_SETTLED_NS = 2_000_000_000
_DIGEST = re.compile("[0-9a-f]{64}")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def files_of(model: Path) -> list[Path]:
    """A model's file, and the file of external weights where there is one."""
    beside = model.with_name(f"{model.name}.weights")
    return [model, beside] if beside.is_file() else [model]


@lru_cache(maxsize=1)
def boot() -> str:
    """What names the time since this machine was started; empty where the system does not tell."""
    try:
        return _BOOT.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def remembered_digest(path: Path, cache_dir: Path, since: str = "") -> str:
    """SHA-256 of a file's bytes as hex text, remembered where the file has not changed.

    Args:
        cache_dir: where digests are kept; writable only by whom the caller trusts.
        since: what was remembered under another word does not count.

    Raises:
        OSError: the file cannot be read.
    """
    known_as = identity(path)
    note = _note(known_as, cache_dir, since)
    with contextlib.suppress(OSError, ValueError):
        known = note.read_text(encoding="utf-8")
        if _DIGEST.fullmatch(known):
            return known
    digest = file_digest(path)
    settled = time.time_ns() - max(known_as[-2:]) > _SETTLED_NS
    if (settled or path.is_relative_to(cache_dir)) and identity(path) == known_as:
        _write(note, digest)
    return digest


def remember_digest(path: Path, digest: str, cache_dir: Path, since: str = "") -> None:
    """Remember the digest of a file that this process has made, and that nobody changes."""
    with contextlib.suppress(OSError):
        _write(_note(identity(path), cache_dir, since), digest)


def identity(path: Path) -> tuple[int, ...]:
    """What a file has in common with itself alone, as long as it is not changed."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _note(known_as: tuple[int, ...], cache_dir: Path, since: str) -> Path:
    words = f"{known_as!r}{since}"
    return cache_dir / _FOLDER / hashlib.sha256(words.encode()).hexdigest()


def _write(note: Path, digest: str) -> None:
    with contextlib.suppress(OSError):
        note.parent.mkdir(exist_ok=True)
        note.write_text(digest, encoding="utf-8")

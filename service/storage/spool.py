"""A folder of this server process for uploads and jobs in progress.

A process that was killed cannot clean up. So each locks its own folder, and the next one to start
removes the folders without a lock.
"""

from __future__ import annotations

import fcntl
import shutil
import uuid
from pathlib import Path
from typing import IO


class Spool:
    """A fresh folder under `root`, locked until `close`."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in root.iterdir():
            _remove_if_left(old)
        self.path = root / uuid.uuid4().hex
        self._lock: IO[str] = (root / f"{self.path.name}.lock").open("w", encoding="utf-8")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()


def _remove_if_left(lock_path: Path) -> None:
    if lock_path.suffix != ".lock":
        return
    try:
        with lock_path.open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
            lock_path.unlink(missing_ok=True)
    except OSError:  # its process lives
        return

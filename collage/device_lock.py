"""One measurement at a time on a machine's device, across processes.

The lock is on a file: the kernel releases it when its process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from collage.partitioner.errors import CancelledError

_POLL_S = 0.02


def slot_path() -> Path:
    """The lock file of this machine's device and user."""
    folder = Path(
        os.environ.get("COLLAGE_RUNTIME_DIR") or Path(tempfile.gettempdir()) / f"collage-{os.getuid()}"
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "slot-cpu.lock"


@contextlib.contextmanager
def device_slot(cancel: threading.Event | None = None, until_s: float = math.inf) -> Iterator[bool]:
    """Hold the device's slot inside the block.

    Args:
        cancel: stops the waiting.
        until_s: the waiting ends then, by `time.monotonic`, and the block runs without the slot.

    Yields:
        Whether the slot is held.

    Raises:
        CancelledError: `cancel` was set.
    """
    with slot_path().open("w", encoding="utf-8") as file:
        while not (held := _locked(file)) and time.monotonic() < until_s:
            if (cancel or threading.Event()).wait(_POLL_S):
                raise CancelledError("cancelled while waiting for the device")
        yield held


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""One measurement at a time on a machine's device, across processes.

The lock is on a file: the kernel releases it when its process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

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
def device_slot(cancel: threading.Event | None = None) -> Iterator[None]:
    """Hold the device's slot inside the block."""
    with slot_path().open("w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancel is not None and cancel.is_set():
                    raise CancelledError("cancelled while waiting for the device") from None
                (cancel or threading.Event()).wait(_POLL_S)
        yield

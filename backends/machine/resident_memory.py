"""Resident memory of this process: now, and at its highest."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path


def resident_bytes() -> int:
    """What is resident now."""
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    """The most that was resident, since the start or `forget_peak`."""
    return _status_bytes("VmHWM")


def forget_peak() -> None:
    """Make the kernel count the peak from here on."""
    with contextlib.suppress(OSError):  # then the peak includes what was before
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _status_bytes(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

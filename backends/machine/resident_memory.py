"""Resident memory of this process: now, and at its highest; and what can be given back."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

# Advice that loses nothing, whatever is mapped there meanwhile; older kernels refuse it.
_PAGE_OUT = 21


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


def give_back() -> None:
    """Give memory that was freed back to the system, where the C library keeps it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def release_pages(folder: Path) -> None:
    """Let go of pages of files in a folder that are mapped to be read.

    The kernel reads them from the disk again where they are needed, also by other processes: a file that is read soon
    is better kept.
    """
    if sys.platform != "linux":
        return
    beginning = f"{folder.resolve()}/"
    libc = ctypes.CDLL(None)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            addresses, access, _, _, _, *path = line.split(maxsplit=5)
            if "".join(path).startswith(beginning) and access.startswith("r--s"):
                first, last = (int(address, 16) for address in addresses.split("-"))
                place, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
                libc.madvise(place, size, _PAGE_OUT)


def _status_bytes(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

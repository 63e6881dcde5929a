"""How much disk a tuning keeps for files that can be made again: sub-models and what runtimes compiled.

The files unused for longest go first. The budget grows with the model, since each timed plan needs
files about as large as the model.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# Models of usual size never come near it, so nothing is made twice for them.
_LEAST_BYTES = 1 << 30
_TIMES_THE_MODEL = 3


@dataclass(frozen=True)
class DiskBudget:
    """Bytes for sub-models, and as many for what runtimes compiled into the folder `compiled`."""

    most_bytes: int
    compiled: Path

    @classmethod
    def for_model(cls, model: Path, compiled: Path) -> DiskBudget:
        """The budget of one tuning; `model` is the normalized model, in a folder of its own."""
        return cls(max(_LEAST_BYTES, _TIMES_THE_MODEL * size_bytes(model.parent)), compiled)

    def evict_compiled(self) -> None:
        """Remove what runtimes compiled and did not use for longest; none may run meanwhile."""
        evict_oldest(self.compiled, self.most_bytes)


def evict_oldest(folder: Path, most_bytes: int) -> None:
    """Remove the entries of a folder that were not touched for longest, until the rest fits."""
    found = [(entry.stat().st_mtime_ns, size_bytes(entry), entry) for entry in folder.iterdir()]
    excess = sum(size for _, size, _ in found) - most_bytes
    for _, size, entry in sorted(found):
        if excess > 0:
            remove(entry)
            excess -= size


def size_bytes(path: Path) -> int:
    """Size of a file, or of all files in a folder."""
    if not path.is_dir():
        return _own_size(path)
    return sum(_own_size(Path(base) / name) for base, _, names in os.walk(path) for name in names)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _own_size(path: Path) -> int:
    with contextlib.suppress(OSError):  # already gone
        return path.stat().st_size
    return 0

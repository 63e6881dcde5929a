"""How much disk a tuning keeps for what could be made again: extracted sub-models, and what runtimes made of them.

Both save time and nothing else, so what was not used for longest goes first. How much room they get grows with
the model, since each plan that is timed needs files about as large as the model.
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
    """Room for sub-models, and as much again for what runtimes made of them.

    Args:
        most_bytes: of each.
        compiled: the folder of what runtimes made.
    """

    most_bytes: int
    compiled: Path

    @classmethod
    def for_model(cls, model: Path, compiled: Path) -> DiskBudget:
        """The room of one tuning.

        Args:
            model: file of the normalized model, in a folder of its own.
            compiled: as above.
        """
        return cls(max(_LEAST_BYTES, _TIMES_THE_MODEL * size_bytes(model.parent)), compiled)

    def make_for_compiled(self) -> None:
        """Remove what runtimes made and did not use for longest; none of them may run meanwhile."""
        make_room(self.compiled, self.most_bytes)


def make_room(folder: Path, most_bytes: int) -> None:
    """Remove entries of a folder that were not touched for longest, until the rest fits.

    Args:
        folder: of files and folders, each complete in itself.
        most_bytes: for all of them together.
    """
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
    with contextlib.suppress(OSError):  # gone meanwhile
        return path.stat().st_size
    return 0

"""The artifacts that are watched, and what was measured of each: plain files in one folder.

FOLDER/NAME/NAME.onnx      a copy of the artifact, with its weights beside it
FOLDER/NAME/history.jsonl  one line for each measurement
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.partitioner.errors import BadInputError
from collage.partitioner.file_digest import file_digest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_HISTORY = "history.jsonl"


def default_folder() -> Path:
    """This user's folder of watched artifacts."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "collage" / "watch"


@dataclass(frozen=True)
class Watched:
    """A watched artifact."""

    name: str
    artifact: Path

    @property
    def digest(self) -> str:
        """What identifies the artifact and its weights."""
        digests = [file_digest(file) for file in _with_weights(self.artifact)]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was measured, the oldest first; damaged lines are left out."""
        found = []
        path = self.artifact.parent / _HISTORY
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:  # a process was killed while it wrote
                continue
        return found

    def note(self, record: Mapping[str, Any]) -> None:
        """Add a measurement."""
        with (self.artifact.parent / _HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class WatchList:
    """The watched artifacts of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, artifact: Path, name: str | None = None) -> Watched:
        """Watch a copy of an artifact; of the same name, it takes the other's place and keeps its history.

        Measurements of the other are never compared with its own.

        Raises:
            BadInputError: the file is no artifact, or the name cannot be a folder's.
        """
        read_report(artifact)
        called = name or artifact.name.removesuffix(".onnx").removesuffix(".collage")
        if not _NAME.match(called):
            raise BadInputError(
                f"{called!r} cannot be the name of a watched artifact; give letters, digits, dots and dashes with --name"
            )
        folder = self._folder / called
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.onnx*"):
            old.unlink()
        # Large weights beside it are found by the artifact's own name, so that stays.
        for file in _with_weights(artifact):
            shutil.copyfile(file, folder / file.name)
        return Watched(called, folder / artifact.name)

    def list(self) -> tuple[Watched, ...]:
        """Every watched artifact, by name."""
        found = []
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            files = sorted(folder.glob("*.onnx")) if folder.is_dir() else []
            if files:
                found.append(Watched(folder.name, files[0]))
        return tuple(found)

    def remove(self, name: str) -> None:
        """Watch an artifact no longer; its history goes too.

        Raises:
            BadInputError: none has that name.
        """
        known = {watched.name: watched for watched in self.list()}
        if name not in known:
            names = ", ".join(known) or "none"
            raise BadInputError(f"no artifact {name!r} is watched; those are: {names}")
        shutil.rmtree(known[name].artifact.parent)


def _with_weights(artifact: Path) -> list[Path]:
    """The artifact's file, and those of weights beside it."""
    return sorted(artifact.parent.glob(f"{glob.escape(artifact.name)}*"))

"""SHA-256 of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes as hex text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

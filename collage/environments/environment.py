"""Finds out what an interpreter has, before anything of a model runs there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage.backends.sandbox.run import ChildLimits
from collage.environments.processes import POLL_S, WorkerError, WorkerProcess, check_cancelled
from collage.environments.work import PROTOCOL, Environment
from collage.environments.worker import describe
from collage.partitioner.errors import BadInputError
from collage.runner import Runner

_LOOK = """
import json, os, sys, sysconfig
folders = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))]
folders += [sysconfig.get_config_var("LIBDIR") or "", os.path.dirname(os.__file__), *sys.path]
print(json.dumps([f for f in dict.fromkeys(folders) if f and os.path.isdir(f)]))
"""
_TIMEOUT_S = 120.0
# A package of a namespace package lies two folders below the one that is searched.
_DEPTH = 2


def this_environment(runner: Runner, cancel: threading.Event | None = None) -> Environment:
    """The interpreter that runs a runner's children, here or on its workers."""
    limits = ChildLimits(timeout_s=_TIMEOUT_S, address_bytes=0, gpus=True)
    return Environment(None, runner.run(describe, limits=limits, cancel=cancel)["versions"])


def environment_of(python: Path, cancel: threading.Event | None = None) -> Environment:
    """Another interpreter.

    Args:
        python: its executable.
        cancel: stops it when set.

    Raises:
        BadInputError: it does not run, or lacks what this project needs; the message says what to do.
        CancelledError: `cancel` was set.
    """
    path = python.absolute()
    folders = [path.parent, *map(Path, _folders(path, cancel))]
    with tempfile.TemporaryDirectory(prefix="collage-environment-") as folder:
        plain = Environment(path, {})
        try:
            with WorkerProcess(plain, Path(folder), _TIMEOUT_S, cancel) as process:
                found: dict[str, Any] = process.ask({"do": "describe"})
        except WorkerError as error:
            raise BadInputError(
                f"{python} cannot measure ({error}); install collage-tuner and the runtimes there: "
                f"{python} -m pip install collage-tuner"
            ) from None
    if found.get("protocol") != PROTOCOL:
        raise BadInputError(
            f"{python} has a collage-tuner that measures otherwise; install this version there"
        )
    return Environment(path, found["versions"], _files_in(folders))


def _folders(python: Path, cancel: threading.Event | None) -> list[str]:
    try:
        done = _run([str(python), "-c", _LOOK], cancel)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BadInputError(f"{python} is no Python interpreter that runs: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BadInputError(f"{python} is no Python interpreter that runs: {last}")
    try:
        return [os.fspath(folder) for folder in json.loads(done.stdout.splitlines()[-1])]
    except (IndexError, TypeError, ValueError):
        raise BadInputError(
            f"{python} is no Python interpreter; give the path of one, such as /opt/next/bin/python"
        ) from None


def _run(words: Sequence[str], cancel: threading.Event | None) -> subprocess.CompletedProcess[str]:
    """Run a program as `subprocess.run` does, until `cancel` is set."""
    end_s = time.monotonic() + _TIMEOUT_S
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, encoding="utf-8", **pipes) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said = process.communicate(timeout=POLL_S)
                    return subprocess.CompletedProcess(words, process.returncode, *said)
                check_cancelled(cancel)
                if time.monotonic() > end_s:
                    raise subprocess.TimeoutExpired(words, _TIMEOUT_S)
        finally:
            process.kill()


def _files_in(folders: Sequence[Path]) -> tuple[Path, ...]:
    """A file of each folder, by which a sandboxed child is given the folder with all below it.

    A folder that has only sub-folders gives them one by one.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        _find_files(folder, found, depth=0)
    return tuple(found.values())


def _find_files(folder: Path, found: dict[Path, Path], depth: int) -> None:
    if depth > _DEPTH or any(folder.is_relative_to(given) for given in found):
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    if (file := next((entry for entry in entries if entry.is_file()), None)) is not None:
        found[folder] = file
        return
    for entry in entries:
        if entry.is_dir():
            _find_files(entry, found, depth + 1)

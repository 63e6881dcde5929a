"""An owner whose children attack: `python -m tests.backends.sandbox.attacked_owner USER NAMESPACES AROUND`.

Prints one JSON object. USER is `root` or `plain`; without NAMESPACES (`none`) the kernel refuses them, as
many containers do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from collage.backends.sandbox import linux
from collage.backends.sandbox.run import ChildFailed, ChildLimits, protections, run_in_child
from collage.backends.sandbox.seccomp import refuse_calls
from tests.backends.sandbox import attacks

NOBODY = 65534
_MIB = 1 << 20


def main() -> None:
    """Attack, and print how it went."""
    user, namespaces, around = sys.argv[1], sys.argv[2], attacks.Around(**json.loads(sys.argv[3]))
    if user == "plain" and os.getuid() == 0:
        _become_nobody()
    if namespaces == "none":
        linux.prctl(38, 1)
        assert refuse_calls()
    sibling = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    try:
        found = _attack(replace(around, owner=os.getpid(), sibling=sibling.pid))
        found["sibling"] = sibling.poll()
    finally:
        sibling.kill()
        sibling.wait()
    print(json.dumps(found))


def _attack(around: attacks.Around) -> dict[str, Any]:
    return {
        "protections": asdict(protections()),
        "user": os.getuid(),
        "attacks": run_in_child(attacks.all_attacks, around),
        "forks": run_in_child(attacks.fork_without_end, limits=ChildLimits(processes=50)),
        "disk": _failure(attacks.fill_the_disk, False, disk_bytes=100 * _MIB),
        "disk without names": _failure(attacks.fill_the_disk, True, disk_bytes=100 * _MIB),
        "memory": _failure(attacks.allocate_without_end, 1, memory_bytes=300 * _MIB),
        "memory of three": _failure(attacks.allocate_without_end, 3, memory_bytes=600 * _MIB),
        "memory of one that fled": _failure(attacks.flee_and_allocate, memory_bytes=400 * _MIB),
    }


def _failure(function: object, *args: object, **limits: int) -> list[str]:
    begin = time.monotonic()
    limited = ChildLimits(timeout_s=20, address_bytes=4 << 30, **limits)  # type: ignore[arg-type]
    try:
        run_in_child(function, *args, limits=limited)  # type: ignore[arg-type]
    except ChildFailed as failure:
        return [failure.kind, failure.reason, f"{time.monotonic() - begin:.1f}"]
    return ["returned", ""]


def _become_nobody() -> None:
    """Run this program anew as a user without rights, who can reach the interpreter."""
    for folder in reversed(Path(sys.executable).resolve().parents):
        if not folder.stat().st_mode & 1:
            _open_up(folder, Path(sys.executable).resolve().relative_to(folder).parts[0])
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]])


def _open_up(folder: Path, name: str) -> None:
    """For this process, let everybody pass through a folder to one entry of it."""
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount(None, "/", None, linux.RECURSIVE | linux.PRIVATE)
    tree = linux.copy_of_mount(str(folder / name), recursive=False)
    linux.mount("tmpfs", str(folder), "tmpfs", 0, "mode=755")
    (folder / name).mkdir()
    linux.place_mount(tree, str(folder / name))


if __name__ == "__main__":
    main()

"""NNCF's quantization with accuracy control beside ours: speed, drop on unseen samples, time of tuning.

NNCF stands in an environment of its own in the cache folder of the benchmarks, which also sees the
packages of this one. Its model runs on OpenVINO's own settings.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.support.models import default_cache
from benchmarks.trained.packages import MissingPackageError
from collage.backends.measurement.ratio import compare_builds

REQUIREMENT = "nncf==3.4.0"
_INSTALL_S = 900
_PROCESSES, _ROUNDS = 3, 8
_ROOT = Path(__file__).resolve().parents[3]


def environment() -> Path:
    """The Python of an environment with NNCF, made when it is first needed.

    Raises:
        MissingPackageError: it cannot be installed.
    """
    folder = default_cache() / REQUIREMENT.replace("==", "-")
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.is_file():
        venv.create(folder, clear=True, with_pip=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", REQUIREMENT],
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise MissingPackageError(f"{REQUIREMENT} cannot be installed: {said}")
        ready.touch()
    paths = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    # What the environment has itself comes first. Another checkout may have made it.
    seen = [*site.getsitepackages(), str(_ROOT)]
    (own / "benchmarks.pth").write_text("\n".join(seen) + "\n", encoding="utf-8")
    return python


def quantized(folder: Path, evaluate: str, max_drop: float, timeout_s: float) -> float | str:
    """Let NNCF make `model.xml` of the `model.onnx` in a folder.

    Args:
        folder: with `inputs.npz` and perhaps `labels.npz` too.
        evaluate: the metric.
        max_drop: relative to the score of the model itself.
        timeout_s: after which it is ended.

    Returns:
        The seconds that it took, or why it failed.
    """
    settings = {"evaluate": evaluate, "max_drop": max_drop}
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [str(environment()), "-m", "benchmarks.trained.peers.nncf_child", str(folder)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=_ROOT,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
    except subprocess.TimeoutExpired:
        return f"NNCF took longer than {timeout_s:.0f} s"
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"NNCF failed: {said}"
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return float(found["seconds"])


def timed(files: Sequence[Path]) -> dict[str, Any]:
    """How many times as fast ours and the peer's are as fp32, and ours as the peer's, with intervals.

    Args:
        files: as `benchmarks.trained.peers.timed` takes them.
    """
    builds: list[Mapping[str, Sequence[float]]] = []
    for _ in range(_PROCESSES):
        command = [sys.executable, "-m", "benchmarks.trained.peers.timed", *map(str, files)]
        done = subprocess.run(
            [*command, str(_ROUNDS)], capture_output=True, text=True, check=True, cwd=_ROOT
        )
        builds.append(json.loads(done.stdout.splitlines()[-1]))

    def ratio(slow: str, fast: str) -> dict[str, float]:
        return asdict(compare_builds([(build[slow], build[fast]) for build in builds]))

    return {
        "speedup": ratio("fp32", "peer"),
        "ours": ratio("fp32", "ours"),
        "ours_beside": ratio("peer", "ours"),
    }

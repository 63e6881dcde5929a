"""Packages for tests: changed ones whose sums are right, and small ones without a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collage.deploy import runner


def described(package: Path) -> dict[str, Any]:
    """A package's manifest."""
    found: dict[str, Any] = json.loads((package / runner.MANIFEST).read_text(encoding="utf-8"))
    return found


def sign(package: Path) -> Path:
    """Name all files in the manifest, and write their SHA-256 anew."""
    files = [p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()]
    names = [name for name in files if name not in (runner.MANIFEST, runner.SUMS)]
    manifest = described(package)
    manifest["additional_metadata"][runner.NAMESPACE]["files"] = names
    (package / runner.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    lines = [
        f"{hashlib.sha256((package / name).read_bytes()).hexdigest()}  {name}\n"
        for name in (*names, runner.MANIFEST)
    ]
    (package / runner.SUMS).write_text("".join(lines), encoding="utf-8")
    return package


def edit(package: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the manifest of a package."""
    manifest = described(package)
    change(manifest)
    (package / runner.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return sign(package)


def tiny(folder: Path, variants: Mapping[str, Mapping[str, Any]]) -> Path:
    """A package of no partitions, whose one output is a weight; each variant as the manifest has its plan."""
    plans = {}
    for name, plan in variants.items():
        (folder / name).mkdir(parents=True)
        np.savez(folder / name / "constants.npz", np.arange(3.0))
        usual = {"machine": {}, "requirements": {}, "partitions": []}
        named = {"constants": "constants.npz", "constant_names": ["y"]}
        plans[name] = {"executor_info": {runner.NAMESPACE: {**usual, **named, **plan}}}
    model = {"inputs": [], "outputs": [{"name": "y", "dtype": "float64", "shape": [3]}], "tolerance": 0}
    manifest = {
        "components": {"model": {"variants": plans}},
        "additional_metadata": {runner.NAMESPACE: model},
    }
    np.savez(folder / runner.SELF_TEST, np.arange(3.0))
    (folder / runner.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return sign(folder)

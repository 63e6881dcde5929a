"""The folder that a diagnosis writes: its names, and all of it as one file that can be sent.

report.json  error-by-depth.svg  culprit-N/  slow-N/
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.partitioner.errors import BadInputError

REPORT, PICTURE = "report.json", "error-by-depth.svg"
CULPRIT, SLOW = "culprit-", "slow-"
_FILES = (REPORT, PICTURE)
_FOLDERS = re.compile(rf"({CULPRIT}|{SLOW})[0-9]+")


def output_beside(model: Path) -> Path:
    """Where a diagnosis writes that is given no folder: `MODEL.diagnosis`.

    Raises:
        BadInputError: the path has no file name.
    """
    if not model.name:
        raise BadInputError(f"{str(model)!r} is no model file; give the path of an ONNX file or a zip")
    return model.with_suffix(".diagnosis")


def make_output(folder: Path) -> None:
    """Make the folder of a diagnosis, without what an earlier one wrote there.

    Raises:
        BadInputError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for entry in folder.iterdir():
            if entry.name in _FILES and not entry.is_dir():
                entry.unlink()
            elif _FOLDERS.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
    except OSError as error:
        raise BadInputError(
            f"nothing can be written to the folder {str(folder)!r} ({error.strerror}); give another output folder"
        ) from None


def write_bundle(report: Mapping[str, Any], folder: Path, destination: Path) -> dict[str, Any]:
    """Zip the folder of a diagnosis.

    Args:
        report: as `diagnose` returned it.
        folder: where it wrote; its `report.json` is written anew.
        destination: the zip, outside of the folder.

    Returns:
        The report with paths relative to the zip; `faults.error_by_depth.svg` is the picture itself.
    """
    told: dict[str, Any] = json.loads(json.dumps(report))
    entries = [*told["faults"]["culprits"], *told["speed"].get("regions", ())]
    for entry in entries:
        if made := entry.get("reproducer"):
            made["folder"] = Path(made["folder"]).relative_to(folder).as_posix()
    depth, svg = told["faults"]["error_by_depth"], None
    if depth is not None and depth["picture"] is not None:
        picture = Path(depth["picture"])
        depth["picture"] = picture.relative_to(folder).as_posix()
        svg = picture.read_text(encoding="utf-8")
    text = json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / REPORT).write_text(text, encoding="utf-8")
    with zipfile.ZipFile(destination, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder).as_posix())
    if depth is not None:
        depth["svg"] = svg
    return told

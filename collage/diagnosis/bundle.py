"""What a diagnosis wrote, as one file that can be sent: a zip, with a report whose paths are those in it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.diagnosis.diagnose import REPORT


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

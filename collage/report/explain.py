"""Why each partition is where it is: from the artifact's report, without measuring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.partitioner.emit.annotate import read_plan
from collage.report.partition_svg import PartitionTimes, draw


def explain(path: Path, svg: Path | None = None) -> dict[str, Any]:
    """The report of an artifact; an SVG of its partitions goes to `svg`."""
    report = read_report(path)
    if svg is not None:
        svg.write_text(draw_artifact(path, report), encoding="utf-8")
    return report


def draw_artifact(path: Path, report: Mapping[str, Any]) -> str:
    """An artifact's partitions as SVG."""
    stored = read_plan(path)
    times = [
        PartitionTimes(part.get("latency_us"), part.get("predicted_us"))
        for part in report["partitions"]
    ]
    return draw(stored.model.index, stored.plan.partitions, times)

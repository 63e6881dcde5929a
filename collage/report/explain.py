"""Why each partition is where it is: from the report that the artifact carries, without measuring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.partitioner.emit.annotate import read_plan
from collage.report.partition_svg import PartitionTimes, draw


def explain(path: Path, picture: Path | None = None) -> dict[str, Any]:
    """What an artifact's report says about its partitions.

    Args:
        path: the artifact.
        picture: where an SVG of the partitioned graph goes.
    """
    report = read_report(path)
    if picture is not None:
        picture.write_text(draw_artifact(path, report), encoding="utf-8")
    return report


def draw_artifact(path: Path, report: Mapping[str, Any]) -> str:
    """The picture of an artifact's partitions."""
    stored = read_plan(path)
    times = [
        PartitionTimes(part.get("latency_us"), part.get("predicted_us"))
        for part in report["partitions"]
    ]
    return draw(stored.model.index, stored.plan.partitions, times)

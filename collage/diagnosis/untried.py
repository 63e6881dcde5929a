"""What a report of a diagnosis leaves open: a target is right only where every region ran and was right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def untried(report: Mapping[str, Any]) -> str | None:
    """Why not all that the target takes is known to be right or wrong, in one sentence; None where it is."""
    regions = report["faults"]["regions"]
    if not regions:
        return f"{report['target']} takes no node of the model, so nothing ran"
    left = sum(region["outcome"] == "not tried" for region in regions)
    if not left:
        return None
    return f"{left} of {len(regions)} regions {'was' if left == 1 else 'were'} not tried; allow more trials"

"""What jobs of each kind take and make: their options, and the numbers that lists show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.cost_db.jobs.job import Kind
from collage.diagnosis.options import DiagnoseOptions
from collage.diagnosis.untried import untried
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.service.jobs.summary import summarize

ONNX_TYPE, ZIP_TYPE = "application/octet-stream", "application/zip"


def check_options(kind: Kind, options: Mapping[str, Any]) -> TuneOptions | DiagnoseOptions | None:
    """The options of a job; None of a kind that has none.

    Raises:
        BadInputError: an option is unknown or its value is not allowed.
    """
    if kind == "tune":
        return TuneOptions.from_json(options)
    if kind == "diagnose":
        return DiagnoseOptions.from_json(options)
    if options:
        raise BadInputError(f"a watch has no options, and these are given: {', '.join(options)}")
    return None


def summary_of(kind: Kind, report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a report that lists of jobs show."""
    if kind == "tune":
        return summarize(dict(report))
    if kind == "diagnose":
        return _of_diagnosis(report)
    return _of_watch(report)


def _of_diagnosis(report: Mapping[str, Any]) -> dict[str, Any]:
    faults, speed = report["faults"], report["speed"]
    errors = [region.get("error") for region in faults["regions"]]
    numbers = [error for error in errors if isinstance(error, int | float)]
    whole = speed.get("whole") or {}
    return {
        "faults": len(faults["culprits"]),
        "is_right": not faults["culprits"] and untried(report) is None,
        "slow_regions": len(speed.get("regions", ())),
        "largest_error": max(numbers, default=None) if "infinite" not in errors else None,
        "ratio": whole.get("ratio"),
        "ratio_interval": whole.get("ratio_interval"),
    }


def _of_watch(report: Mapping[str, Any]) -> dict[str, Any]:
    results = report["results"]
    worst = min(results, key=lambda result: _WORST.index(result["verdict"]))
    return {"verdict": worst["verdict"], "ratio": worst["ratio"], "interval": worst["interval"]}


_WORST = ("failed", "wrong", "slower", "faster", "same")

"""Two or more jobs side by side: options, plans, and which nodes moved to another target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.service.pages.answer import PlanBar, plan_bars

_NAMES_SHOWN = 4


@dataclass(frozen=True)
class Moved:
    """Nodes that the compared plans place alike, and not all on one target."""

    targets: tuple[str | None, ...]  # per job; None where the job's model lacks them
    nodes: tuple[str, ...]
    count: int


def option_rows(options: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any], bool]]:
    """Per option its value in each job, and whether the jobs differ in it."""
    names = sorted({name for each in options for name in each})
    rows = []
    for name in names:
        values = [each.get(name) for each in options]
        rows.append((name, values, any(value != values[0] for value in values)))
    return rows


def plan_rows(
    reports: Sequence[Mapping[str, Any] | None],
) -> list[tuple[str, Sequence[str], list[PlanBar | None]]]:
    """Per plan's name its targets and its bar in each job, the fastest first."""
    columns = [{bar.name: bar for bar in plan_bars(report)} if report else {} for report in reports]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        cells = [column.get(name) for column in columns]
        targets = next((cell.targets for cell in cells if cell is not None), ())
        rows.append((name, targets, cells))
    return sorted(rows, key=lambda row: min(_latency_us(cell) for cell in row[2]))


def moved(reports: Sequence[Mapping[str, Any] | None]) -> list[Moved]:
    """The nodes whose targets differ between the jobs that have a report, the most first."""
    places = [_places(report) for report in reports]
    having = [place for place in places if place]
    if len(having) < 2:
        return []
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for name in dict.fromkeys(name for place in having for name in place):
        where = tuple(place.get(name) if place else None for place in places)
        if len({target for target, place in zip(where, places, strict=True) if place}) > 1:
            groups.setdefault(where, []).append(name)
    found = [Moved(where, tuple(names[:_NAMES_SHOWN]), len(names)) for where, names in groups.items()]
    return sorted(found, key=lambda group: -group.count)


def _places(report: Mapping[str, Any] | None) -> dict[str, str]:
    if report is None:
        return {}
    return {name: str(part["target"]) for part in report["partitions"] for name in part["nodes"]}


def _latency_us(bar: PlanBar | None) -> float:
    return bar.latency_us if bar is not None and bar.latency_us is not None else float("inf")

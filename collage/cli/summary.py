"""What a tuning run ends with: the answer, one table, warnings, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.table import Table

from collage.cli.shape_tables import show_shapes
from collage.cli.tables import (
    interval_text,
    ms_text,
    number_text,
    show_front,
    show_partitions,
    show_settings,
    stdout_console,
)
from collage.report.objective import measured
from collage.report.verdict import fastest_mix, verdict

_REASON_WIDTH = 160


def show_result(
    report: Mapping[str, Any], artifact: Path, *, front: Path | None = None, verbose: bool = False
) -> None:
    """Show what a tuning run found and wrote.

    Args:
        report: the run's.
        artifact: the file that was written.
        front: the folder of the Pareto front, where one was asked for.
        verbose: also the partitions, and notes about the search.
    """
    console = stdout_console()
    show_comparison(console, report)
    if verbose:
        show_partitions(console, report["partitions"])
    show_front(console, report.get("front"))
    show_settings(console, measured(report))
    for warning in warnings(report, verbose=verbose):
        console.print(labeled(warning), soft_wrap=True)
    name = shlex.quote(_short(artifact))
    console.print(f"\nwrote {name}")
    if front is not None:
        console.print(
            f"wrote {_short(front)}; collage take {name} --point N makes an artifact of a point"
        )
    console.print(f"next: collage run {name}       verify it and run it once", soft_wrap=True)
    console.print(f"      collage explain {name}   why each partition is where it is", soft_wrap=True)
    console.print(f"      collage bench {name}     time it again", soft_wrap=True)


def show_comparison(console: Console, report: Mapping[str, Any]) -> None:
    """The verdict, a row for each plan to compare with, and what was measured."""
    if report.get("shapes") is not None:
        show_shapes(console, report["shapes"])
    else:
        console.print(f"\n{verdict(report).sentence}\n", style="bold", soft_wrap=True)
        console.print(_comparison(report))
    for baseline in report["baselines"]:
        if "infeasible" in baseline:
            reason = shorten(baseline["infeasible"], _REASON_WIDTH, placeholder=" …")
            console.print(f"{baseline['target']} alone is not compared: {reason}", soft_wrap=True)
    if (took := report.get("footprint")) is not None:
        console.print(
            f"the artifact takes {took['peak_rss_bytes'] >> 20} MiB of memory, {took['load_s']:.1f} s to load the first "
            f"time, and {took['size_bytes'] / (1 << 20):.1f} MiB on disk",
            soft_wrap=True,
        )
    counts = report["candidates"]
    now = f"{counts['measured']} measured now, {counts['from_cache']} known before"
    if (since := report.get("known_since")) is not None:
        now = f"all known since {since[:16]}, and --fresh searches again"
    console.print(
        f"{report['seconds']['total']:.0f} s, {counts['total']} candidates: {now}; "
        f"error {number_text(report['max_relative_error'])} of {number_text(report['tolerance'])} allowed",
        soft_wrap=True,
    )
    if (found := report.get("evaluation")) is not None:
        console.print(evaluation_text(found), soft_wrap=True)


def evaluation_text(found: Mapping[str, Any]) -> str:
    """How well a plan does its task, in one line.

    Args:
        found: the field `evaluation` of a report.
    """
    upper = found["drop_upper"]
    sure = "no bound by" if upper is None else f"at most {upper:.2g} by"
    proven = "proven" if found["proven"] else "not proven"
    return (
        f"{found['metric']} {found['score']:.4g} beside {found['reference_score']:.4g} of the model itself: "
        f"{found['drop']:.2g} worse ({sure} its interval), {found['allowed']:.2g} allowed; {proven} on "
        f"{found['samples']} held-out samples"
    )


def warnings(report: Mapping[str, Any], *, verbose: bool = False) -> list[str]:
    """What the user should know: of the verdict, then of the report.

    Args:
        report: a tuning run's.
        verbose: with notes about the candidates of single targets, which ask for nothing.
    """
    doubt = verdict(report).warning if report.get("shapes") is None else None
    notes = tuple(f"{target}: " for target in report["targets"])
    told = [text for text in report["warnings"] if verbose or not text.startswith(notes)]
    return [doubt, *told] if doubt else told


def labeled(text: str) -> str:
    """A warning's line; that a search ended early asks for nothing, so it is a note."""
    return f"{'note' if text.startswith('ended early:') else 'warning'}: {text}"


def _comparison(report: Mapping[str, Any]) -> Table:
    table = Table("plan", box=None, pad_edge=False)
    for name in ("latency", "95 % interval", "times ours"):
        table.add_column(name, justify="right")
    ours = [partition["target"] for partition in report["partitions"]]
    ours_us = report["latency_us"]
    rows = [(ours_us, f"ours: {_plan(ours)}", report["latency_interval_us"], "bold")]
    for baseline in report["baselines"]:
        if "infeasible" not in baseline and ours != [baseline["target"]]:
            error = baseline.get("exceeds_tolerance")
            name = baseline["target"] + ("" if error is None else f" (error {number_text(error)})")
            rows.append((baseline["latency_us"], name, baseline["latency_interval_us"], ""))
    rows += [(us, name, None, "") for us, name in _other_plans(report, ours)]
    for latency_us, name, interval, style in sorted(rows, key=lambda row: row[0]):
        times = f"{latency_us / ours_us:.2f}"
        table.add_row(
            name, ms_text(latency_us), interval_text(interval) if interval else "", times, style=style
        )
    return table


def _other_plans(report: Mapping[str, Any], ours: Sequence[str]) -> list[tuple[float, str]]:
    """The fastest mix that is not the one returned, and the greedy plan."""
    found = []
    best = fastest_mix(report)
    if len(ours) == 1 and best is not None:
        found.append((best["latency_us"], f"best mix: {_plan(best['targets'], best['partitions'])}"))
    if report["greedy_latency_us"] is not None:
        found.append((report["greedy_latency_us"], "greedy"))
    return found


def _plan(targets: Sequence[str], partitions: int | None = None) -> str:
    count = partitions or len(targets)
    names = ", ".join(dict.fromkeys(targets))
    return names if count == 1 else f"{count} partitions ({names})"


def _short(path: Path) -> str:
    """The path relative to the current folder where it is inside."""
    here = Path.cwd()
    return str(path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path)

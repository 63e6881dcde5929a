"""Tables for people on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from collage.report.objective import counts, rate

_PLAIN_WIDTH = 120


def show_front(console: Console, points: Sequence[Mapping[str, Any]] | None) -> None:
    """One row for each point of latency against error."""
    if not points:
        return
    table = Table("point", "error", "latency", "speedup over point 0", "partitions", "targets")
    for point in points:
        table.add_row(
            str(point["point"]),
            number_text(point["max_relative_error"]),
            ms_text(point["latency_us"]),
            _times(point["speedup_over_first"]),
            str(point["partitions"]),
            ", ".join(point["targets"]),
        )
    console.print(table)


def show_settings(console: Console, settings: Sequence[Mapping[str, Any]]) -> None:
    """One row for each setting that was measured with several requests at once."""
    if not settings:
        return
    table = Table("plan", "at once", "requests/s", "median", "p99", "memory", box=None, pad_edge=False)
    for each in sorted(settings, key=lambda each: -each["throughput_per_s"]):
        table.add_row(
            each["name"],
            counts(each),
            rate(each),
            ms_text(each["median_us"]),
            ms_text(each["p99_us"]),
            f"{each['peak_rss_bytes'] >> 20} MiB",
            style="bold" if each["chosen"] else "",
        )
    console.print(table)


def show_partitions(console: Console, partitions: Sequence[Mapping[str, Any]]) -> None:
    """One row for each partition."""
    table = Table(
        "partition", "target", "computes in", "nodes", "in the plan", "first node", "last node"
    )
    for position, part in enumerate(partitions):
        nodes = part["nodes"]
        table.add_row(
            str(position),
            part["target"],
            part.get("numbers", ""),
            str(len(nodes)),
            ms_text(part["latency_us"]),
            nodes[0],
            nodes[-1],
        )
    console.print(table)


def show_bench(found: Mapping[str, Any]) -> None:
    """The plan against every single target, measured anew."""
    table = Table("plan", "latency", "largest error")
    for baseline in found["baselines"]:
        name = f"single {baseline['target']}"
        if "infeasible" in baseline:
            table.add_row(name, "infeasible", str(baseline["infeasible"]))
        else:
            table.add_row(
                name, ms_text(baseline["latency_us"]), number_text(baseline["max_relative_error"])
            )
    latency = (
        ms_text(found["latency_us"])
        if found["latency_us"] is not None
        else f"infeasible: {found['infeasible']}"
    )
    table.add_row(
        f"ours, {counted(found['partitions'], 'partition')}",
        latency,
        number_text(found["max_relative_error"]),
        style="bold",
    )
    console = stdout_console()
    console.print(table)
    if found["speedup_interval"] is not None:
        low, high = found["speedup_interval"]
        console.print(
            f"speedup over the best single target: {found['speedup_over_best_single']:.3f} [{low:.3f}, {high:.3f}]"
        )
    if "against" in found:
        console.print(_against(found["against"]))
    for warning in found["warnings"]:
        console.print(f"note: {warning}")


def _against(found: Mapping[str, Any]) -> str:
    plan = "the same plan" if found["same_plan"] else "another plan"
    if "infeasible" in found:
        return f"the other artifact has {plan}; not compared: {found['infeasible']}"
    low, high = found["interval"]
    return (
        f"the other artifact has {plan} and takes {ms_text(found['latency_us'])}, "
        f"{found['ratio']:.3f} [{low:.3f}, {high:.3f}] times as long"
    )


def show_explanation(report: Mapping[str, Any]) -> None:
    """Why each partition is where it is."""
    console = stdout_console()
    show_partitions(console, report["partitions"])
    for position, part in enumerate(report["partitions"]):
        console.print(
            f"\npartition {position} on {part['target']} ({len(part['nodes'])} nodes):", style="bold"
        )
        if part.get("sense"):
            console.print(f"  {part['numbers']}: {part['sense']}")
        if part.get("prepared"):
            console.print(f"  its nodes were rewritten: {part['prepared']}")
        for line in part["why"]:
            console.print(f"  {line}")
    _show_refused(console, report.get("refused", ()))
    for row in report.get("never_measured", ()):
        if row["never_measured"]:
            least_us = row["at_least_us"]
            least = "" if least_us is None else f"; by estimate each takes at least {ms_text(least_us)}"
            console.print(
                f"\n{row['target']}: {row['never_measured']} of {row['candidates']} candidates were never measured{least}"
            )
    search = report["search"]
    if search is None:
        console.print("\nsearch: none, the strategy makes its plan")
        return
    console.print(
        f"\nsearch: objective {ms_text(search['objective_us'])}, bound {ms_text(search['bound_us'])}, "
        f"{'optimal' if search['optimal'] else 'stopped early'} on these costs"
    )


def _show_refused(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    table = Table("target", "refuses", "nodes", "why", "first node")
    for row in rows:
        table.add_row(row["target"], row["op"], str(row["nodes"]), row["reason"], row["first"])
    console.print(table)


def show_targets(found: Sequence[Mapping[str, Any]]) -> None:
    """One line for each runtime."""
    rows = []
    for backend in found:
        if backend["available"]:
            version = backend["version"].split()[0].partition("-")[0]
            rows.append((backend["name"], version, backend["summary"]))
        else:
            rows.append((backend["name"], "missing", f"to install it: {backend['how_to_install']}"))
    shown = stdout_console()
    widths = [max(map(len, cells)) for cells in zip(*(row[:2] for row in rows), strict=True)]
    for name, version, summary in rows:
        line = f"{name:{widths[0]}}  {version:{widths[1]}}  {summary}"
        shown.print(line, no_wrap=True, overflow="ellipsis")
    shown.print("\noptions of one: collage targets NAME")


def show_target(found: Mapping[str, Any]) -> None:
    """One runtime, and its options."""
    shown = stdout_console()
    shown.print(f"{found['name']}: {found['summary']}")
    if found["available"]:
        shown.print(f"version {found['version']}")
    else:
        shown.print(f"missing: {found['reason']}; to install it: {found['how_to_install']}")
    table = Table("option", "values", "default", "meaning", box=None, pad_edge=False)
    for option in found["options"]:
        choices = ", ".join(option["choices"])
        table.add_row(f"-{option['name']}", choices, option["default"], option["help"])
    shown.print(table)
    first = next((o for o in found["options"] if o["choices"]), None)
    if first is not None:
        shown.print(f"\nas a target: -t '{found['name']} -{first['name']}={first['choices'][-1]}'")


def show_costs(rows: Sequence[Mapping[str, Any]]) -> None:
    """One row for each measured cost."""
    table = Table("measured", "target", "nodes", "operators", "latency", "host")
    for row in rows:
        ops = row["op_types"] if len(row["op_types"]) <= 40 else row["op_types"][:39] + "…"
        latency = (
            ms_text(row["latency_us"])
            if row["latency_us"] is not None
            else f"infeasible: {row['reason']}"
        )
        table.add_row(
            row["created_at"][:19], row["target"], str(row["node_count"]), ops, latency, row["host"]
        )
    stdout_console().print(table)


def show_stats(stats: Mapping[str, Any]) -> None:
    """How many costs are known, by kind."""
    table = Table("what", "count")
    for name, value in stats.items():
        if isinstance(value, Mapping):
            for key, count in value.items():
                table.add_row(f"{name.removeprefix('by_')} {key}", str(count))
        else:
            table.add_row(name, str(value))
    stdout_console().print(table)


def show_learned(found: Mapping[str, Any]) -> None:
    """One row for each target whose costs are predicted."""
    console = stdout_console()
    seen = f"{found['observations']} observations of {counted(found['models'], 'model')}"
    if not found["targets"]:
        console.print(
            f"{seen}; a target is predicted once {found['enough_models']} models ran on it here"
        )
        return
    table = Table("target", "observations", "models", "median error", "nine of ten within")
    for row in found["targets"]:
        table.add_row(
            row["target"],
            str(row["rows"]),
            str(row["models"]),
            f"{row['median']:.0%}",
            f"a factor of {row['factor']:.2f}",
        )
    console.print(table)
    console.print(f"{seen}; errors are of models that the predictor did not see")


def stdout_console() -> Console:
    """Where tables go: as wide as the terminal, else of one width."""
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False, markup=False)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it takes one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ms_text(latency_us: float | None) -> str:
    return "" if latency_us is None else f"{latency_us / 1e3:.3f} ms"


def interval_text(interval_us: Sequence[float]) -> str:
    return f"{interval_us[0] / 1e3:.3f} to {interval_us[1] / 1e3:.3f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"

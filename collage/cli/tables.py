"""Tables for people on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 120


def show_report(report: Mapping[str, Any]) -> None:
    """The comparison with every single target, and what the plan is."""
    console = _console()
    table = Table("plan", "latency", "95 % interval", "speed-up over best single")
    speedup = report["speedup_over_best_single"]
    best = None if speedup is None else report["latency_us"] * speedup
    for baseline in report["baselines"]:
        name = f"single {baseline['target']}"
        if "infeasible" in baseline:
            table.add_row(name, "infeasible", "", baseline["infeasible"])
        else:
            ratio = best / baseline["latency_us"] if best else None
            if "exceeds_tolerance" in baseline:
                name += f" (error {_number(baseline['exceeds_tolerance'])})"
            table.add_row(
                name,
                _ms(baseline["latency_us"]),
                _range(baseline["latency_interval_us"]),
                _times(ratio),
            )
    if report["greedy_latency_us"] is not None:
        ratio = best / report["greedy_latency_us"] if best else None
        table.add_row("greedy", _ms(report["greedy_latency_us"]), "", _times(ratio))
    interval = report["speedup_interval"]
    said = _times(speedup) + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
    partitions = report["partitions"]
    table.add_row(
        _ours(len(partitions)),
        _ms(report["latency_us"]),
        _range(report["latency_interval_us"]),
        said,
        style="bold",
    )
    console.print(table)
    show_partitions(console, partitions)
    if (since := report.get("known_since")) is not None:
        console.print(f"known since {since}: nothing was measured now; --fresh searches again")
    counts = report["candidates"]
    console.print(
        f"{counts['total']} candidates, {counts['measured']} measured now, "
        f"{counts['from_cache']} known before, {counts['infeasible']} infeasible; largest error "
        f"{_number(report['max_relative_error'])} of {_number(report['tolerance'])} allowed ({report['metric']})"
    )
    show_front(console, report.get("front"))
    for warning in report["warnings"]:
        console.print(f"note: {warning}")


def show_front(console: Console, points: Sequence[Mapping[str, Any]] | None) -> None:
    """One row for each point of latency against error."""
    if not points:
        return
    table = Table("point", "error", "latency", "speed-up over point 0", "partitions", "targets")
    for point in points:
        table.add_row(
            str(point["point"]),
            _number(point["max_relative_error"]),
            _ms(point["latency_us"]),
            _times(point["speedup_over_first"]),
            str(point["partitions"]),
            ", ".join(point["targets"]),
        )
    console.print(table)


def show_partitions(console: Console, partitions: Sequence[Mapping[str, Any]]) -> None:
    """One row for each partition."""
    table = Table(
        "partition", "target", "computes in", "nodes", "in the plan", "first node", "last node"
    )
    for position, part in enumerate(partitions):
        nodes = part["nodes"]
        sizes = str(len(nodes)), _ms(part["latency_us"])
        numbers = part.get("numbers", "")
        table.add_row(str(position), part["target"], numbers, *sizes, nodes[0], nodes[-1])
    console.print(table)


def show_bench(found: Mapping[str, Any]) -> None:
    """The plan against every single target, measured anew."""
    table = Table("plan", "latency", "largest error")
    for baseline in found["baselines"]:
        name = f"single {baseline['target']}"
        if "infeasible" in baseline:
            table.add_row(name, "infeasible", str(baseline["infeasible"]))
        else:
            table.add_row(name, _ms(baseline["latency_us"]), _number(baseline["max_relative_error"]))
    said = (
        _ms(found["latency_us"])
        if found["latency_us"] is not None
        else f"infeasible: {found['infeasible']}"
    )
    table.add_row(
        _ours(found["partitions"]),
        said,
        _number(found["max_relative_error"]),
        style="bold",
    )
    console = _console()
    console.print(table)
    if found["speedup_interval"] is not None:
        low, high = found["speedup_interval"]
        console.print(
            f"speed-up over the best single target: {found['speedup_over_best_single']:.3f} [{low:.3f}, {high:.3f}]"
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
        f"the other artifact has {plan} and takes {_ms(found['latency_us'])}, "
        f"{found['ratio']:.3f} [{low:.3f}, {high:.3f}] times as long"
    )


def show_explanation(report: Mapping[str, Any]) -> None:
    """Why each partition is where it is."""
    console = _console()
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
            console.print(
                f"\n{row['target']}: {row['never_measured']} of {row['candidates']} candidates were never "
                f"measured; none of them promises to take less than {_ms(row['at_least_us'])}"
            )
    search = report["search"]
    if search is None:
        console.print("\nsearch: none, the strategy makes its plan")
        return
    console.print(
        f"\nsearch: objective {_ms(search['objective_us'])}, bound {_ms(search['bound_us'])}, "
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
    """Backends, and how to install those that are missing."""
    table = Table("backend", "version", "style", "options", "what it is")
    for backend in found:
        options = " ".join(
            f"-{o['name']}={'|'.join(o['choices']) or o['default']}" for o in backend["options"]
        )
        version = (
            backend["version"] if backend["available"] else f"missing: {backend['how_to_install']}"
        )
        table.add_row(backend["name"], version, backend["style"], options, backend["summary"])
    _console().print(table)


def show_costs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Measured costs."""
    table = Table("measured", "target", "nodes", "operators", "latency", "host")
    for row in rows:
        ops = row["op_types"] if len(row["op_types"]) <= 40 else row["op_types"][:39] + "…"
        said = (
            _ms(row["latency_us"]) if row["latency_us"] is not None else f"infeasible: {row['reason']}"
        )
        table.add_row(
            row["created_at"][:19], row["target"], str(row["node_count"]), ops, said, row["host"]
        )
    _console().print(table)


def show_stats(stats: Mapping[str, Any]) -> None:
    """Counts of costs."""
    table = Table("what", "count")
    for name, value in stats.items():
        if isinstance(value, Mapping):
            for key, count in value.items():
                table.add_row(f"{name.removeprefix('by_')} {key}", str(count))
        else:
            table.add_row(name, str(value))
    _console().print(table)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False, markup=False)


def _ours(partitions: int) -> str:
    return f"ours, {partitions} partition{'' if partitions == 1 else 's'}"


def _ms(latency_us: float | None) -> str:
    return "" if latency_us is None else f"{latency_us / 1e3:.3f} ms"


def _range(interval_us: Sequence[float]) -> str:
    return f"{interval_us[0] / 1e3:.3f} to {interval_us[1] / 1e3:.3f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"

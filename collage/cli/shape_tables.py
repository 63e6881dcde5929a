"""Tables of artifacts with free dimensions, by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from collage.cli.tables import ms_text, number_text, stdout_console
from collage.report.verdict import title

# A longer name of dimensions would push the numbers apart.
_WIDEST = 16


def show_shapes(console: Console, shapes: Mapping[str, Any]) -> None:
    """What was found over all shapes, a row for each, and the classes.

    Args:
        shapes: as the report has it.
    """
    console.print(f"\n{sentence(shapes)}\n", style="bold", soft_wrap=True)
    console.print(_rows(shapes["rows"]))
    for number, one in enumerate(shapes["classes"]):
        console.print(_class(shapes["classes"], number, one, shapes["rows"]), soft_wrap=True)
    if shapes["rss_bytes"]:
        held = ", ".join(f"{name} {size >> 20} MiB" for name, size in shapes["rss_bytes"].items())
        console.print(f"memory of a process that ran all shapes: {held}", soft_wrap=True)


def show_shape_bench(found: Mapping[str, Any]) -> None:
    """The plans against every single target at each shape, measured anew."""
    console = stdout_console()
    console.print(_rows(found["shapes"]))
    for row in found["shapes"]:
        if row["infeasible"] is not None:
            console.print(f"class {row['class']} cannot run: {row['infeasible']}", soft_wrap=True)
    for warning in found["warnings"]:
        console.print(f"note: {warning}", soft_wrap=True)


def sentence(shapes: Mapping[str, Any]) -> str:
    """The answer in one sentence: the mean over all shapes beside that of each single target."""
    weighted = shapes["weighted"]
    ranges = ", ".join(f"{name} {text}" for name, text in shapes["dims"].items())
    count = len(shapes["classes"])
    plans = "one plan" if count == 1 else f"{count} plans"
    others = [s for s in weighted["singles"] if s["any_shape_us"] is not None]
    told = ", ".join(
        f"{s['any_shape_us'] / weighted['latency_us']:.2f} × {title(s['target'])}"
        for s in sorted(others, key=lambda s: float(s["any_shape_us"]))
    )
    return (
        f"{plans} for {ranges}: {ms_text(weighted['latency_us'])} in the mean over shapes"
        f"{f', {told}, each compiled for any shape' if told else ''}."
    )


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Milliseconds of each shape; of a single target compiled for any shape, and for this one alone."""
    names = " × ".join(rows[0]["sizes"])
    shape = names if len(names) <= _WIDEST else "shape"
    table = Table(box=None, pad_edge=False, caption="milliseconds; for any shape / for this one alone")
    table.caption_justify = "left"
    has_hot = any(row["hot_latency_us"] is not None for row in rows)
    ours = "ours / often" if has_hot else "ours"
    for name in (shape, "weight", "class", ours, *(s["target"] for s in rows[0]["singles"])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        own = _ms(row["latency_us"])
        table.add_row(
            " × ".join(map(str, row["sizes"].values())),
            number_text(row["weight"]),
            str(row["class"]),
            f"{own} / {_ms(row['hot_latency_us'])}" if has_hot else own,
            *(f"{_ms(s['any_shape_us'])} / {_ms(s['this_shape_us'])}" for s in row["singles"]),
        )
    return table


def _class(
    classes: Sequence[Mapping[str, Any]],
    number: int,
    one: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> str:
    text = f"class {number}{_where(classes, number, rows)}: {_plan(one)}, compiled once for any shape"
    hot = one["hot"]
    if hot is None:
        return text
    return (
        f"{text}; from request {hot['from_request']} of a shape on {_plan(hot)}, compiled for it alone in "
        f"{hot['compile_s']:.2g} s"
    )


def _where(classes: Sequence[Mapping[str, Any]], number: int, rows: Sequence[Mapping[str, Any]]) -> str:
    if len(classes) == 1:
        return ""
    of = " × ".join(rows[0]["sizes"])
    up_to, before = classes[number]["up_to"], classes[number - 1]["up_to"] if number else None
    return f" ({of} up to {up_to})" if up_to is not None else f" ({of} above {before})"


def _plan(one: Mapping[str, Any]) -> str:
    names = ", ".join(one["targets"])
    return names if one["partitions"] == 1 else f"{one['partitions']} partitions ({names})"


def _ms(latency_us: float | None) -> str:
    return "–" if latency_us is None else f"{latency_us / 1e3:.3g}"

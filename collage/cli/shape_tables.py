"""Tables of artifacts with free dimensions, by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from collage.cli.tables import number_text, stdout_console
from collage.report.shapes import class_texts, memory_text, sentence

# A longer name of dimensions would push the numbers apart.
_WIDEST = 16


def show_shapes(console: Console, shapes: Mapping[str, Any]) -> None:
    """What was found over all shapes, a row for each, and the classes.

    Args:
        shapes: as the report has it.
    """
    console.print(f"\n{sentence(shapes)}\n", style="bold", soft_wrap=True)
    console.print(_rows(shapes["rows"]))
    for text in class_texts(shapes):
        console.print(text, soft_wrap=True)
    if shapes["rss_bytes"]:
        console.print(memory_text(shapes), soft_wrap=True)


def show_shape_bench(found: Mapping[str, Any]) -> None:
    """The plans against every single target at each shape, measured anew."""
    console = stdout_console()
    console.print(_rows(found["shapes"]))
    for row in found["shapes"]:
        if row["infeasible"] is not None:
            console.print(f"class {row['class']} cannot run: {row['infeasible']}", soft_wrap=True)
    for warning in found["warnings"]:
        console.print(f"note: {warning}", soft_wrap=True)


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


def _ms(latency_us: float | None) -> str:
    return "–" if latency_us is None else f"{latency_us / 1e3:.3g}"

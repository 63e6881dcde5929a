"""`collage atlas`: who is fast at what, by the cost database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli.parameters import AsJson, Database

_SHOWN = 40


def atlas(
    search: Annotated[
        list[str] | None, typer.Argument(help="Words that rows must have, as: conv 3x3 openvino.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Only this hardware: its fingerprint, or how it begins.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write a page (HTML) of it.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Count all costs anew, also where there are many.")
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Say which target is fast at which operators, shapes and data types, as measured so far."""
    from collage.atlas.atlas import read_atlas
    from collage.atlas.page import atlas_page
    from collage.cost_db.connections import default_url
    from collage.cost_db.database import CostDatabase

    costs = CostDatabase(database or default_url())
    try:
        found = read_atlas(costs, search=" ".join(search or []), hardware=hardware, fresh=fresh)
    finally:
        costs.close()
    if output is not None:
        output.write_text(atlas_page(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found)
    if output is not None and not as_json:
        typer.echo(f"wrote {output}")


def _show(found: Mapping[str, Any]) -> None:
    from rich.table import Table

    from collage.atlas.page import interval_text
    from collage.cli.tables import stdout_console

    console = stdout_console()
    table = Table(
        "operators", "shapes", "type", "target", "times best", "interval", "regions", "models"
    )
    for row in found["rows"][:_SHOWN]:
        table.add_row(
            row["kind"],
            row["shape_class"],
            row["dtype"],
            row["target"].partition(" ")[0],
            f"{row['times_best']:.2f}" + ("" if row["is_sure"] else " ?"),
            interval_text(row["interval"]),
            str(row["regions"]),
            str(row["models"]),
        )
    console.print(table)
    if len(found["rows"]) > _SHOWN:
        console.print(
            f"{len(found['rows']) - _SHOWN} more rows: search for less, or write a page with -o"
        )
    console.print(f"more than twice as slow as another target: {len(found['differences'])}")
    for pair in found["differences"][:10]:
        console.print(
            f"  {pair['kind']}, {pair['shape_class']}, {pair['dtype']}: {pair['slow'].partition(' ')[0]} takes "
            f"{pair['factor']:.2f} times as long as {pair['fast'].partition(' ')[0]}"
            + ("" if pair["is_sure"] else " (not sure)")
        )


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(atlas)

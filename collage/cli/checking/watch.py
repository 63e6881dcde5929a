"""`collage watch`: measure artifacts again when something changes, and say what became slower or wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from collage.cli.parameters import AsJson

REGRESSION = 3
"""Exit status where something became slower or wrong."""

Folder = Annotated[
    Path | None, typer.Option(help="Where watched artifacts are kept [this user's folder].")
]

watch_app = typer.Typer(
    help="Measure artifacts again when a runtime or the machine changes.", no_args_is_help=True
)


@watch_app.command("add")
def watch_add(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    name: Annotated[str | None, typer.Option(help="What to call it [its file's name].")] = None,
    folder: Folder = None,
) -> None:
    """Watch a copy of ARTIFACT."""
    from collage.watch.watch_list import WatchList, default_folder

    watched = WatchList(folder or default_folder()).add(artifact, name)
    typer.echo(f"watching {watched.name}")


@watch_app.command("list")
def watch_list(folder: Folder = None, as_json: AsJson = False) -> None:
    """List watched artifacts and their last measurement."""
    from collage.watch.watch_list import WatchList, default_folder

    found = [(w, w.history) for w in WatchList(folder or default_folder()).list()]
    if as_json:
        rows = [
            {"name": w.name, "artifact": str(w.artifact), "history": history} for w, history in found
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    for watched, history in found:
        last = (
            f"measured {len(history)} times, last {history[-1]['at']}"
            if history
            else "not measured yet"
        )
        typer.echo(f"{watched.name}: {last}")


@watch_app.command("remove")
def watch_remove(
    name: Annotated[str, typer.Argument(help="As `collage watch list` calls it.")],
    folder: Folder = None,
) -> None:
    """Watch an artifact no longer; its history goes too."""
    from collage.watch.watch_list import WatchList, default_folder

    WatchList(folder or default_folder()).remove(name)
    typer.echo(f"no longer watching {name}")


@watch_app.command("run")
def watch_run(
    environment: Annotated[
        list[Path] | None,
        typer.Option(help="Python of an environment to compare with this one; may be repeated."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure although nothing changed.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write Markdown.")] = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Measure all watched artifacts; exit status 3 where one became slower or wrong."""
    from collage.watch import reports
    from collage.watch.run import is_regression, run_watch
    from collage.watch.watch_list import WatchList, default_folder

    results = run_watch(
        WatchList(folder or default_folder()),
        environment or [],
        again,
        listener=lambda event: typer.echo(event.message, err=True),
    )
    if junit is not None:
        junit.write_text(reports.junit(results), encoding="utf-8")
    if markdown is not None:
        markdown.write_text(reports.markdown(results), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            ratio = reports.ratio_text(result)
            typer.echo(f"{result['name']}: {result['verdict']} {ratio} ({result['reason']})")
    if is_regression(results):
        raise typer.Exit(REGRESSION)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(watch_app, name="watch")

"""`collage diagnose`: which nodes are wrong, crash, hang or are slow on a target."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli.parameters import AsJson

FOUND, UNTRIED = 3, 4
"""Exit status where a fault was found; and where none was found in what ran, but not all ran."""
_OTHER = "other"


def diagnose(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file, or a zip with external data.")],
    target: Annotated[str, typer.Option("-t", "--target", help="The target to look at.")],
    inputs: Annotated[Path | None, typer.Option(help="Sample inputs as .npz.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for what is found [MODEL.diagnosis]."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="The target to compare speed with [the fastest other one installed]."),
    ] = None,
    against_version: Annotated[
        Path | None,
        typer.Option(
            help="Python of another environment, to compare with the runtime there; "
            "with --server the name of one of its environments."
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, max=1000, help="How many runs may look for faults.")
    ] = 40,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a run is said to hang.")
    ] = 60.0,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Also run nodes that the target's guard refuses.")
    ] = False,
    tolerance: Annotated[float, typer.Option(help="Largest error that is right.")] = 1e-3,
    metric: Annotated[str, typer.Option(help="max, l2, cosine or top1.")] = "max",
    dim: Annotated[list[str] | None, typer.Option(help="Size of a free dimension, as batch=1.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of one call [all cores].")] = None,
    server: Annotated[
        str | None, typer.Option(help="Diagnose on a server at this URL instead of here.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="COLLAGE_TOKEN", help="Token for the server.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the nodes of MODEL that are wrong, crash, hang or are slow on a target."""
    from collage.cli.tune_options import sizes
    from collage.diagnosis.output import make_output, output_beside
    from collage.diagnosis.untried import untried
    from collage.events import Event

    cancel = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    folder = output or output_beside(model)
    given: dict[str, Any] = {
        "tolerance": tolerance,
        "metric": metric,
        "dims": sizes(dim or []),
        "threads": threads,
        "against": against,
        "trials": trials,
        "timeout_s": timeout,
        "all_nodes": all_nodes,
    }
    options = {name: value for name, value in given.items() if value is not None}

    def tell(event: Event) -> None:
        if context.obj or event.stage == "trial":
            typer.echo(event.message, err=True)

    if server is not None:
        from collage.client.client import Client
        from collage.client.diagnose import diagnose_remotely

        if against_version is not None:
            options["against_environment"] = str(against_version)
        with Client(server, token=token) as client:
            report = diagnose_remotely(
                client,
                model,
                target,
                output=folder,
                inputs=inputs,
                options=options,
                make_output=make_output,
                on_event=tell,
                cancel=cancel,
            )
    else:
        from collage.diagnosis.diagnose import diagnose as run_diagnosis
        from collage.diagnosis.options import DiagnoseOptions

        environments = {}
        if against_version is not None:
            environments[_OTHER] = str(against_version)
            options["against_environment"] = _OTHER
        asked = DiagnoseOptions.from_json(options).request(model, target, folder, inputs, environments)
        report = run_diagnosis(asked, listener=tell, cancel=cancel)
    typer.echo(json.dumps(report, indent=2)) if as_json else show(report, folder)
    if report["faults"]["culprits"]:
        raise typer.Exit(FOUND)
    if untried(report) is not None:
        raise typer.Exit(UNTRIED)


def show(report: Mapping[str, Any], folder: Path) -> None:
    """Print a report for people."""
    from collage.diagnosis.untried import untried

    faults, left = report["faults"], untried(report)
    if report["refused"]:
        nodes = sum(row["nodes"] for row in report["refused"])
        typer.echo(f"{report['target']} does not take {nodes} of {report['nodes']} nodes")
    for culprit in faults["culprits"]:
        _show_culprit(culprit)
    if left is not None:
        found = "" if faults["culprits"] else "no fault was found, but "
        typer.echo(f"{found}{left} (--trials)" if faults["regions"] else f"not known: {left}")
    elif not faults["culprits"]:
        worst = max(region["error"] for region in faults["regions"])
        typer.echo(f"no fault: {report['target']} is right, its largest error {worst:.2g}")
    _show_speed(report["speed"])
    depth = faults["error_by_depth"]
    if depth is not None and depth["picture"]:
        typer.echo(f"error by depth: {depth['picture']}")
    for note in report["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"wrote {folder}: {faults['trials_in_all']} trials")


def _show_culprit(culprit: Mapping[str, Any]) -> None:
    names = culprit["nodes"]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    small = "" if culprit["is_smallest"] else "; a smaller region may do it (give more --trials)"
    typer.echo(f"{culprit['outcome']}: {culprit['operators']} ({shown}){small}")
    typer.echo(f"  {culprit['reason']}")
    values = culprit["values"]
    for element in values["elements"] if values else ():
        where = ", ".join(map(str, element["index"]))
        typer.echo(f"  [{where}] expected {element['expected']}, got {element['got']}")
    reproducer = culprit.get("reproducer")
    if reproducer:
        state = "shows it" if reproducer["reproduced"] else "runs it, but did not fail when tried"
        typer.echo(f"  {reproducer['folder']}/reproduce.py {state}")


def _show_speed(speed: Mapping[str, Any]) -> None:
    if "whole" not in speed:
        failures = [failure for failure in speed.get("failures", ()) if failure]
        typer.echo(f"speed: {speed.get('note') or failures[0]}")
        return
    slow, fast = (f"{side['target']} ({side['version']})" for side in speed["sides"])
    whole = speed["whole"]
    low, high = whole["ratio_interval"]
    typer.echo(
        f"speed: {slow} takes {whole['ratio']:.3f} [{low:.3f}, {high:.3f}] times as long as {fast}"
    )
    for region in speed["regions"]:
        names = region["nodes"]
        typer.echo(f"  slow: {region['operators']} ({names[0]}{' …' if len(names) > 1 else ''})")
        for where in ("alone", "in_place"):
            part = region[where]
            low, high = part["ratio_interval"]
            typer.echo(
                f"    {where.replace('_', ' ')}: {part['latency_us']:.0f} µs for {part['other_latency_us']:.0f} µs, "
                f"{part['ratio']:.3f} [{low:.3f}, {high:.3f}] times as long"
            )
        typer.echo(f"    {region['reproducer']['folder']}/time_it.py times it")
    if speed.get("note"):
        typer.echo(f"  {speed['note']}")
    elif not speed["regions"]:
        typer.echo("  no region is slower by more than its share")


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(diagnose)

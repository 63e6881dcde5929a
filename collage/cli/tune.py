"""`collage tune`: options in, progress while it runs, the answer at the end."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli.parameters import Certificates, Database
from collage.cli.tune_options import takes_tune_options
from collage.metrics.names import is_function
from collage.partitioner.errors import BadInputError


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(takes_tune_options(tune))


def tune(
    *,
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file, or a zip with external data.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--target",
            help="A target; give one per option. [those of --plan, else all installed runtimes]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the artifact goes.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report as JSON.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the partitioned graph as SVG.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Sample inputs as .npz, or a folder.")] = None,
    options: Mapping[str, Any] | None = None,
    labels: Annotated[
        Path | None, typer.Option(help="The truth for a metric of --evaluate, as .npy or .npz.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Tune on a server at this URL instead of here.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="COLLAGE_TOKEN", help="Token for the server.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(envvar="COLLAGE_SCHEDULER", help="Measure on this scheduler's workers."),
    ] = None,
    certificates: Certificates = None,
    database: Database = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every step.")] = False,
) -> None:
    """Find the fastest partition of MODEL over the targets and write it as one ONNX file."""
    from collage.cli.progress import progress
    from collage.cli.summary import show_result

    options = dict(options or {})
    if server is not None and is_function(options.get("evaluate")):
        raise BadInputError(
            "--evaluate module:function runs your own code, so it is for tuning here, without --server"
        )
    destination = output or model.with_suffix(".collage.onnx")
    cancel = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    verbose = verbose or bool(context.obj)
    with progress(verbose) as listener:
        if server is not None:
            from collage.client.client import Client
            from collage.client.tune import tune_remotely
            from collage.metrics.labels import labeled_inputs

            with (
                Client(server, token=token) as client,
                labeled_inputs(inputs, labels) as inputs,
            ):
                artifact = tune_remotely(
                    client,
                    model,
                    target or [],
                    output=destination,
                    inputs=inputs,
                    options=options,
                    on_event=listener,
                    cancel=cancel,
                )
        else:
            from collage.api import tune as tune_here

            artifact = tune_here(
                model,
                target or [],
                output=destination,
                inputs=inputs,
                database=database,
                scheduler=scheduler,
                certificates=certificates,
                on_event=listener,
                cancel=cancel,
                labels=labels,
                **options,
            )
    if report is not None:
        report.write_text(json.dumps(artifact.report, indent=2) + "\n", encoding="utf-8")
    if picture is not None:
        from collage.report.explain import draw_artifact

        picture.write_text(draw_artifact(artifact.path, artifact.report), encoding="utf-8")
    from collage.report.objective import draw_settings, measured

    folder = None
    if options.get("pareto"):
        from collage.report.pareto import write_front

        folder = artifact.path.with_suffix(".front")
        write_front(artifact.path, folder)
    if settings := measured(artifact.report):
        drawn = artifact.path.with_suffix(".settings.svg")
        drawn.write_text(draw_settings(settings), encoding="utf-8")
    show_result(artifact.report, artifact.path, front=folder, verbose=verbose)

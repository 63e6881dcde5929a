"""The command line. Exit status: 0, 2 for bad usage or input, 1 for everything else that fails."""

from __future__ import annotations

import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli import workers
from collage.cli.tokens import tokens_app
from collage.partitioner.errors import BadInputError, CollageError

app = typer.Typer(
    name="collage",
    help="Which runtime should run which part of a model? Find out by measuring.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
costs_app = typer.Typer(help="Look at the cost database.", no_args_is_help=True)
db_app = typer.Typer(help="Look after the cost database.", no_args_is_help=True)
app.add_typer(costs_app, name="costs")
app.add_typer(db_app, name="db")
app.add_typer(tokens_app, name="token")
workers.register(app)

PlanTargets = Annotated[
    list[str] | None,
    typer.Option("-t", "--target", help="A target; give one per option. [those of --plan]"),
]
Database = Annotated[
    str | None, typer.Option("--database", help="URL of the cost database [COLLAGE_DATABASE_URL].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_state = {"verbose": False}


@app.callback()
def _common(
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the trace of an error.")] = False,
) -> None:
    _state["verbose"] = verbose


@app.command()
def tune(
    model: Annotated[Path, typer.Argument(help="An ONNX file, or a zip with external data.")],
    target: PlanTargets = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the artifact goes.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report as JSON.")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Bound on the error of every output [0.001; none with --evaluate]."),
    ] = None,
    metric: Annotated[str, typer.Option(help="max, l2, cosine or top1.")] = "max",
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also find the fastest plans at other errors.")
    ] = False,
    evaluate: Annotated[
        str | None, typer.Option(help="Your own check, as module:function; only here, not on a server.")
    ] = None,
    at_least: Annotated[float | None, typer.Option(help="The smallest value that passes it.")] = None,
    at_most: Annotated[float | None, typer.Option(help="The largest value that passes it.")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="Size of a free dimension, as batch=1.")] = None,
    inputs: Annotated[Path | None, typer.Option(help="Sample inputs as .npz.")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds after which the best so far is taken.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of one call [all cores].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of generated inputs.")] = 0,
    strategy: Annotated[
        str, typer.Option(help="optimal, greedy, priority, single or manual.")
    ] = "optimal",
    pin: Annotated[
        list[str] | None, typer.Option(help="What must go to a target, as Conv=openvino.")
    ] = None,
    ban: Annotated[list[str] | None, typer.Option(help="What must not, as Resize=mnn.")] = None,
    max_partitions: Annotated[int | None, typer.Option(help="At most so many partitions.")] = None,
    max_devices: Annotated[int | None, typer.Option(help="At most so many devices.")] = None,
    min_partition_nodes: Annotated[int, typer.Option(help="No smaller partition than this.")] = 1,
    plan: Annotated[
        Path | None, typer.Option(help="Apply this plan (or an artifact's) instead of searching.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Search again even where the result is known.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the partitioned graph as SVG.")
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
    certificates: workers.Certificates = None,
    wait_for_worker: Annotated[
        float, typer.Option(help="Seconds to wait for a worker that has all targets.")
    ] = 0.0,
    database: Database = None,
) -> None:
    """Find the fastest partition of MODEL over the targets and write it as one ONNX file."""
    from collage.artifact.export import read_plan_file
    from collage.cli.progress import progress

    applied = read_plan_file(plan) if plan is not None else None
    targets = target or []
    options: dict[str, Any] = {
        **({} if tolerance is None else {"tolerance": tolerance}),
        "metric": metric,
        "pareto": pareto,
        "dims": _dims(dim or []),
        "time_limit_s": time_limit,
        "threads": threads,
        "seed": seed,
        "strategy": strategy,
        "pins": tuple(pin or ()),
        "bans": tuple(ban or ()),
        "max_partitions": max_partitions,
        "max_devices": max_devices,
        "min_partition_nodes": min_partition_nodes,
        "plan": applied,
        "fresh": fresh,
        "wait_for_worker_s": wait_for_worker,
    }
    destination = output or model.with_suffix(".collage.onnx")
    cancel = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    if server is not None and evaluate is not None:
        raise BadInputError("--evaluate runs your own code, so it is for tuning here, without --server")
    with progress() as listener:
        if server is not None:
            from collage.client.client import Client
            from collage.client.tune import tune_remotely

            with Client(server, token=token) as client:
                artifact = tune_remotely(
                    client,
                    model,
                    targets,
                    output=destination,
                    inputs=inputs,
                    options=options,
                    on_event=listener,
                    cancel=cancel,
                )
        else:
            from collage.accuracy.evaluation import load_function
            from collage.api import tune as tune_here

            artifact = tune_here(
                model,
                targets,
                output=destination,
                inputs=inputs,
                database=database,
                scheduler=scheduler,
                certificates=certificates,
                on_event=listener,
                cancel=cancel,
                evaluate=None if evaluate is None else load_function(evaluate),
                at_least=at_least,
                at_most=at_most,
                **options,
            )
    if report is not None:
        report.write_text(json.dumps(artifact.report, indent=2) + "\n", encoding="utf-8")
    if picture is not None:
        from collage.report.explain import draw_artifact

        picture.write_text(draw_artifact(artifact.path, artifact.report), encoding="utf-8")
    from collage.cli.tables import show_report

    show_report(artifact.report)
    typer.echo(f"wrote {artifact.path}")
    if pareto:
        from collage.report.pareto import write_front

        folder = artifact.path.with_suffix(".front")
        write_front(artifact.path, folder)
        typer.echo(f"wrote {folder}; `collage take {artifact.path} --point N` makes an artifact of one")


@app.command()
def take(
    artifact: Annotated[Path, typer.Argument(help="What `collage tune --pareto` wrote.")],
    point: Annotated[int, typer.Option(help="Number of the point in its front.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the new artifact goes.")
    ] = None,
) -> None:
    """Make another point of ARTIFACT's front an artifact of its own."""
    from collage.artifact.pareto_point import write_pareto_point

    taken = write_pareto_point(artifact, point, output or artifact.with_suffix(f".{point}.onnx"))
    typer.echo(f"wrote {taken.path}: error {taken.report['max_relative_error']:.2g}")


@app.command()
def run(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    inputs: Annotated[Path | None, typer.Option(help="Inputs as .npz; seeded ones by default.")] = None,
    outputs: Annotated[Path | None, typer.Option(help="Where outputs go, as .npz.")] = None,
    fallback: Annotated[
        str | None, typer.Option(help="Target for partitions whose own is missing.")
    ] = None,
) -> None:
    """Load ARTIFACT, verify it, and compute its outputs once."""
    from collage.cli.run import run_once

    run_once(artifact, inputs, outputs, fallback, typer.echo)


@app.command()
def bench(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    against: Annotated[
        Path | None, typer.Option(help="Another artifact of the same model, timed in the same rounds.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="The model that was tuned; needed where partitions are int8 in the artifact."
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=20,
            help="How often all are built and timed, twice that where it is unclear; builds differ.",
        ),
    ] = 4,
    as_json: AsJson = False,
) -> None:
    """Time ARTIFACT's plan against every single target again, interleaved."""
    from collage.cli.tables import show_bench
    from collage.report.bench import bench as bench_artifact

    found = bench_artifact(artifact, against=against, source=model, processes=processes)
    typer.echo(json.dumps(found, indent=2)) if as_json else show_bench(found)


@app.command()
def explain(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the partitioned graph as SVG.")
    ] = None,
) -> None:
    """Say for each partition of ARTIFACT why it is where it is."""
    from collage.cli.tables import show_explanation
    from collage.report.explain import explain as explain_artifact

    found = explain_artifact(artifact, picture)
    typer.echo(json.dumps(found, indent=2)) if as_json else show_explanation(found)


@app.command()
def export(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    plan: Annotated[Path | None, typer.Option(help="Where the plan alone goes, as JSON.")] = None,
    outline: Annotated[
        Path | None, typer.Option(help="Where the model with one function per partition goes.")
    ] = None,
    layers: Annotated[
        Path | None, typer.Option(help="Where the model with ONNX Runtime's layer annotations goes.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="ONNX Runtime's device for a target's partitions, as openvino=npu."),
    ] = None,
) -> None:
    """Write ARTIFACT's plan in forms that other tools use."""
    from collage.artifact.export import export as export_artifact
    from collage.artifact.export import parse_devices

    written = export_artifact(artifact, plan, outline, layers, parse_devices(device or []))
    typer.echo(json.dumps(written, indent=2))


@app.command()
def targets(as_json: AsJson = False) -> None:
    """List the backends, whether they are installed, and their options."""
    from collage.cli.queries import list_targets
    from collage.cli.tables import show_targets

    found = list_targets()
    typer.echo(json.dumps(found, indent=2)) if as_json else show_targets(found)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind to [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port [8000].")] = None,
) -> None:
    """Run the tuning server."""
    # The one place where the face calls the server; the server itself imports this package.
    import importlib

    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = importlib.import_module("collage.service.settings").Settings(**given)
    importlib.import_module("collage.service.app").serve(settings)


@costs_app.command("list")
def costs_list(
    target: Annotated[str | None, typer.Option("-t", "--target", help="Only this target.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.")] = 50,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List measured costs, newest first."""
    from collage.cli.queries import list_costs
    from collage.cli.tables import show_costs

    found = list_costs(database, target, limit)
    typer.echo(json.dumps(found, indent=2)) if as_json else show_costs(found)


@costs_app.command("stats")
def costs_stats(database: Database = None, as_json: AsJson = False) -> None:
    """Count measured costs by outcome, backend and host."""
    from collage.cli.queries import cost_stats
    from collage.cli.tables import show_stats

    found = cost_stats(database)
    typer.echo(json.dumps(found, indent=2)) if as_json else show_stats(found)


@db_app.command("upgrade")
def db_upgrade(database: Database = None) -> None:
    """Bring the database to the newest schema."""
    from collage.cli.queries import upgrade_database

    typer.echo(upgrade_database(database))


def _dims(texts: list[str]) -> dict[str, int]:
    dims = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not value.isdigit() or int(value) < 1:
            raise BadInputError(f"--dim {text!r} is not of the form name=value with a positive number")
        dims[name] = int(value)
    return dims


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(guarded(lambda: app(standalone_mode=True)))


def guarded(action: Callable[[], Any]) -> int:
    """Run an action; a known error is one line on stderr and a status."""
    try:
        action()
    except CollageError as error:
        if _state["verbose"]:
            traceback.print_exc()
        print(f"collage: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInputError) else 1
    return 0

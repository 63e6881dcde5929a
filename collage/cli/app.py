"""The command line. Exit status: 0, 2 for bad usage or input, 1 for everything else that fails."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli import tune, workers
from collage.cli.checking import atlas, diagnose, mcp_server, watch
from collage.cli.jobs import jobs_app
from collage.cli.parameters import AsJson, Database
from collage.cli.tokens import tokens_app
from collage.partitioner.errors import BadInputError, CollageError
from collage.serving.command import serve_model

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
app.add_typer(jobs_app, name="jobs")
app.add_typer(tokens_app, name="token")
workers.register(app)

_verbose = False


@app.callback()
def _common(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every step, and the trace of an error.")
    ] = False,
) -> None:
    global _verbose
    context.obj = _verbose = verbose


tune.register(app)
diagnose.register(app)
atlas.register(app)
watch.register(app)
mcp_server.register(app)
app.command("serve-model")(serve_model)


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
    dim: Annotated[
        list[str] | None,
        typer.Option(help="Size of a free dimension for seeded inputs, as length=17."),
    ] = None,
) -> None:
    """Load ARTIFACT, verify it, and compute its outputs once."""
    from collage.cli.run import run_once
    from collage.cli.tune_options import sizes

    run_once(artifact, inputs, outputs, fallback, sizes(dim or []), typer.echo)


@app.command()
def package(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Folder; a package of the same model there gets a variant."
        ),
    ],
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads of one call [as tuned, or all cores].")
    ] = None,
    triton: Annotated[
        bool, typer.Option("--triton", help="Write a model of a Triton repository into the folder.")
    ] = False,
) -> None:
    """Write ARTIFACT as a folder that runs without Collage."""
    from collage.deploy.package import write_package
    from collage.deploy.triton import write_triton_model

    if triton:
        model, written = write_triton_model(artifact, output, threads)
        typer.echo(f"wrote {model}: variant {written.variant}, beside {', '.join(written.others)}")
        needed = written.folder / "requirements.txt"
        typer.echo(
            f"in Triton's container: pip install -r {needed}; tritonserver --model-repository {output}"
        )
        return
    written = write_package(artifact, output, threads)
    typer.echo(f"wrote {written.folder}: variant {written.variant}, beside {', '.join(written.others)}")
    typer.echo("on the machine that runs it: pip install -r requirements.txt, then python runner.py")


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
    from collage.cli.shape_tables import show_shape_bench
    from collage.cli.tables import show_bench
    from collage.report.bench import bench as bench_artifact

    found = bench_artifact(artifact, against=against, source=model, processes=processes)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    show_shape_bench(found) if "shapes" in found else show_bench(found)


@app.command()
def explain(
    artifact: Annotated[Path, typer.Argument(help="A partitioned model.")],
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the partitioned graph as SVG.")
    ] = None,
) -> None:
    """Say for each partition of ARTIFACT why it is where it is."""
    from collage.cli.shape_tables import show_shapes
    from collage.cli.tables import show_explanation, stdout_console
    from collage.report.explain import explain as explain_artifact

    found = explain_artifact(artifact, picture)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    if found.get("shapes") is not None:
        show_shapes(stdout_console(), found["shapes"])
    show_explanation(found)


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
def targets(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its options.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runtimes: installed in which version, or how to install them."""
    from collage.backends.registry import for_tests
    from collage.cli.queries import find_target, list_targets
    from collage.cli.tables import show_target, show_targets

    if name is not None:
        found = find_target(name)
        typer.echo(json.dumps(found, indent=2)) if as_json else show_target(found)
    elif as_json:
        typer.echo(json.dumps(list_targets(), indent=2))
    else:
        show_targets([target for target in list_targets() if not for_tests(target["name"])])


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind to [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port [8000].")] = None,
) -> None:
    """Run the tuning server."""
    # Imported by name: the server imports collage, so an import statement would point both ways.
    import importlib

    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = importlib.import_module("collage.service.settings").read_settings(**given)
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


@costs_app.command("learned")
def costs_learned(database: Database = None, as_json: AsJson = False) -> None:
    """Say how well costs of a new model are predicted from those of other models on this machine."""
    from collage.cli.queries import learned
    from collage.cli.tables import show_learned

    found = learned(database)
    typer.echo(json.dumps(found, indent=2)) if as_json else show_learned(found)


@db_app.command("upgrade")
def db_upgrade(database: Database = None) -> None:
    """Bring the database to the newest schema."""
    from collage.cli.queries import upgrade_database

    typer.echo(upgrade_database(database))


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(guarded(lambda: app(standalone_mode=True)))


def guarded(action: Callable[[], Any]) -> int:
    """Run an action; a known error is one line on stderr and a status."""
    try:
        action()
    except CollageError as error:
        if _verbose:
            traceback.print_exc()
        print(f"collage: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInputError) else 1
    return 0

"""`collage jobs`: the jobs of a server: list, label, run again, cancel and remove."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collage.cli.parameters import AsJson
from collage.partitioner.errors import BadInputError

if TYPE_CHECKING:
    from collage.client.answers import RemoteJob
    from collage.client.client import Client

jobs_app = typer.Typer(help="Look after the jobs of a server.", no_args_is_help=True)

_LOCAL = "http://127.0.0.1:8000"  # where `collage serve` listens by default
Server = Annotated[str, typer.Option("--server", envvar="COLLAGE_SERVER", help="URL of the server.")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="COLLAGE_TOKEN", help="Token for the server.")
]
JobId = Annotated[str, typer.Argument(help="The job, as `collage jobs list` shows it.")]
NewLabels = Annotated[
    list[str] | None, typer.Option("--label", help="A label; give one per option. [those it has]")
]


@jobs_app.command("list")
def show(
    server: Server = _LOCAL,
    token: Token = None,
    kind: Annotated[str | None, typer.Option(help="tune, diagnose or watch.")] = None,
    state: Annotated[
        str | None, typer.Option(help="queued, running, done, failed or cancelled.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A part of the model's file name.")] = None,
    model: Annotated[str | None, typer.Option(help="SHA-256 of the model.")] = None,
    owner: Annotated[str | None, typer.Option(help="Id of the token that made the job.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="A label that it has; give one per option.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Made then or later, with zone.")] = None,
    until: Annotated[str | None, typer.Option(help="Made before, with zone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    import itertools

    asked = {
        "kind": kind,
        "name": name,
        "model": model,
        "owner": owner,
        "label": label,
        "since": since,
        "until": until,
    }
    filters = {key: value for key, value in asked.items() if value}
    with _client(server, token) as client:
        found = list(itertools.islice(client.jobs(state, **filters), limit))
    if as_json:
        typer.echo(json.dumps([job.data for job in found], indent=2))
        return
    for job in found:
        typer.echo(_line(job))


@jobs_app.command()
def label(
    job_id: JobId,
    server: Server = _LOCAL,
    token: Token = None,
    labels: NewLabels = None,
    note: Annotated[str | None, typer.Option(help="A text; an empty one removes it.")] = None,
) -> None:
    """Give a job these labels in place of its own, or a note."""
    if labels is None and note is None:
        raise BadInputError("nothing to change; give --label or --note")
    with _client(server, token) as client:
        typer.echo(_line(client.describe(job_id, labels=labels, note=note)))


@jobs_app.command()
def rerun(
    job_id: JobId,
    server: Server = _LOCAL,
    token: Token = None,
    target: Annotated[
        list[str] | None,
        typer.Option("-t", "--target", help="A target; give one per option. [those of the job]"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option to change, as fresh=true; NAME=null brings its default back."),
    ] = None,
    labels: NewLabels = None,
    note: Annotated[str | None, typer.Option(help="A text for people.")] = None,
) -> None:
    """Queue a job like this one, with changes."""
    with _client(server, token) as client:
        made = client.rerun(
            job_id, targets=target, options=_options(option or ()), labels=labels, note=note
        )
        typer.echo(_line(made))


@jobs_app.command()
def cancel(job_id: JobId, server: Server = _LOCAL, token: Token = None) -> None:
    """Cancel a job; one that has ended stays as it is."""
    with _client(server, token) as client:
        typer.echo(_line(client.cancel(job_id)))


@jobs_app.command()
def remove(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB_ID...", help="Jobs that have ended.")],
    server: Server = _LOCAL,
    token: Token = None,
) -> None:
    """Remove jobs that have ended, with the files that are their own."""
    with _client(server, token) as client:
        for job_id in job_ids:
            client.remove(job_id)
            typer.echo(f"removed {job_id}")


def _client(server: str, token: str | None) -> Client:
    from collage.client.client import Client

    return Client(server, token=token)


def _options(texts: Sequence[str]) -> Mapping[str, Any]:
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):
            options[name] = value
        if not equals or not name:
            raise BadInputError(f"--option {text!r} is not of the form name=value")
    return options


def _line(job: RemoteJob) -> str:
    """One job for people."""
    data = job.data
    speedup = (data["summary"] or {}).get("speedup")
    parts = [
        job.id,
        f"{job.state:9}",
        data["created_at"][:16].replace("T", " "),
        data["name"],
        "" if data["kind"] == "tune" else data["kind"],
        ", ".join(data["targets"]),
        f"{speedup:.2f} × the best single target" if speedup else job.reason or "",
        " ".join(f"#{label}" for label in data["labels"]),
    ]
    return "  ".join(part for part in parts if part)

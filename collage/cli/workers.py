"""`collage scheduler`, `collage worker` and `collage certs`: workers on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli.parameters import Certificates


def certs(
    folder: Annotated[Path, typer.Argument(help="Where the authority is kept.")],
    names: Annotated[list[str], typer.Argument(help="Machines; each gets a folder of its own.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address by which HTTPS clients reach them; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long certificates are good.")] = 825,
) -> None:
    """Make certificates for scheduler, server and workers, and an authority where there is none."""
    from collage.cluster.connection import check_installed

    check_installed()
    from collage.cluster.certificates import make_certificates

    for made in make_certificates(folder, names, host or [], days):
        typer.echo(f"wrote {made}: copy it to its machine, and keep {folder / 'ca.key'} to yourself")


def scheduler(
    listen: Annotated[
        str, typer.Option(help="Address to listen on; tls:// for other machines.")
    ] = "tcp://127.0.0.1:8786",
    certificates: Certificates = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds after which a silent or missing worker is given up.")
    ] = 15.0,
) -> None:
    """Run the scheduler that joins tuners with workers."""
    from collage.cluster.connection import check_installed, serve_scheduler

    check_installed()
    _run(serve_scheduler(listen, certificates, patience))


def worker(
    scheduler: Annotated[
        str,
        typer.Option(envvar="COLLAGE_SCHEDULER", help="The scheduler's address: tls://HOST:8786."),
    ],
    certificates: Certificates = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker [the host's].")] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Kind of machine, for -host= of targets [COLLAGE_HOST_LABEL]."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen on, where the scheduler calls back.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            envvar="COLLAGE_WORKER_FOLDER",
            help="For files of tasks; emptied at the start [a temporary one].",
        ),
    ] = None,
    keep_gib: Annotated[float, typer.Option(min=0.1, help="Files kept for later tasks, in GiB.")] = 20,
) -> None:
    """Measure on this machine for tuners elsewhere."""
    from collage.backends.machine.process_policy import apply_environment
    from collage.cluster.connection import check_installed, security

    check_installed()
    security(scheduler, certificates)  # reports a mistake before anything is probed
    apply_environment()
    from collage.cluster.worker import announcement, serve_worker
    from collage.cluster.worker_files import WorkerFiles

    _tell_protections()
    with contextlib.ExitStack() as stack:
        if folder is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="collage-worker-", ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(temporary))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _run(
            serve_worker(
                scheduler,
                certificates,
                announced=announcement(label),
                name=name or socket.gethostname(),
                files=WorkerFiles(folder.resolve(), int(keep_gib * (1 << 30))),
                listen=listen,
            )
        )


def _tell_protections() -> None:
    from collage.backends.sandbox.run import protections

    found = protections()
    print(f"collage worker: children that run models have: {found.holding()}", file=sys.stderr)
    if (missing := found.missing()) is not None:
        print(f"collage worker: children that run models lack: {missing}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (certs, scheduler, worker):
        app.command()(command)


def _run(service: Coroutine[Any, Any, None]) -> None:
    """Run until SIGINT or SIGTERM."""

    async def until_told() -> None:
        task = asyncio.ensure_future(service)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(until_told())

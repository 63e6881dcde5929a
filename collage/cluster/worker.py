"""One worker: a process that measures for tuners on other machines, one task at a time.

It announces its hardware and runtimes to the scheduler, and runs each task in a sandboxed child, alone
on the device. A child ends when its tuner cancels or is gone, or when this process ends. A worker looks
again for a scheduler that went away.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import platform
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from collage.backends.contract import Available
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.registry import backends
from collage.backends.sandbox.codec import OWN_PACKAGES, decode, encode
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.cluster.connection import (
    ANNOUNCEMENT,
    UNREACHABLE,
    Announcement,
    default_listen,
    own_version,
    quieten_dask,
    security,
)
from collage.cluster.remote_call import RemoteCall, RemoteResult, map_paths
from collage.cluster.worker_files import WorkerFiles
from collage.device_lock import device_slot
from collage.partitioner.errors import CancelledError

_LOOK_S = 0.1
_AGAIN_S = 1.0
_PROBE_S = 180.0
ALIVE = "alive"  # a file in the worker's folder; a supervisor asks how old it is
_ALIVE_S = 10.0


class WorkerStopsError(Exception):
    """This worker ends before its task does; another may run it."""


def announcement(label: str | None) -> Announcement:
    """What this machine has, found out in a child; by default `label` is the environment's."""
    found = run_in_child(
        probe_backends, limits=ChildLimits(timeout_s=_PROBE_S, address_bytes=0, gpus=True)
    )
    return Announcement(
        host=socket.gethostname(),
        hardware=hardware(label),
        threads=default_threads(),
        collage=own_version(),
        python=platform.python_version(),
        backends=found[0],
        lacking=found[1],
    )


def probe_backends() -> tuple[dict[str, str], dict[str, str]]:
    """Versions of the runtimes that are here, and why others are not (runs in a child)."""
    versions, reasons = {}, {}
    for name, backend in backends().items():
        probed = backend.probe()
        if isinstance(probed, Available):
            versions[name] = probed.version
        else:
            reasons[name] = f"{probed.reason}; to install it: {probed.how_to_install}"
    return versions, reasons


def worker_files(worker: Any) -> WorkerFiles:
    """The files of a Dask worker that `serve_worker` made."""
    found = worker.collage_files
    assert isinstance(found, WorkerFiles)
    return found


def carry_out(packed: bytes) -> bytes:
    """The task that tuners submit: a `RemoteCall` in, a `RemoteResult` out.

    Raises:
        WorkerStopsError: this worker ends.
    """
    from distributed import get_worker

    worker = get_worker()
    remote_call = decode(packed)
    assert isinstance(remote_call, RemoteCall)
    files = worker_files(worker)
    with _watched(worker) as cancel, files.laid_out(remote_call.places) as base:
        if base is None:
            return encode(RemoteResult(worker.address, files.lacks(remote_call.digests)))
        try:
            return encode(_in_child(remote_call, files, base, worker.address, cancel))
        except CancelledError:
            # A cancelled task's result is dropped; another task runs again.
            raise WorkerStopsError(f"worker {worker.name} ends") from None


def _in_child(
    remote_call: RemoteCall, files: WorkerFiles, base: Path, address: str, cancel: threading.Event
) -> RemoteResult:
    function = getattr(importlib.import_module(remote_call.module), remote_call.function)
    packages = OWN_PACKAGES | {remote_call.module.partition(".")[0]}
    messages: list[Any] = []
    made: dict[str, str] = {}
    files.tidy()
    args, limits = map_paths(
        decode(remote_call.content, packages), partial(files.here, base, remote_call.run)
    )
    try:
        with device_slot(cancel):
            value = run_in_child(
                function, *args, limits=limits, cancel=cancel, on_message=messages.append
            )
    except ChildFailed as failure:
        known = (failure.kind, failure.reason, failure.error_type, failure.detail)
        return RemoteResult(address, failure=known, messages=tuple(messages))

    def kept(path: Any) -> Any:
        token, found = files.keep(remote_call.run, path)
        made.update(found)
        return token

    return RemoteResult(address, value=map_paths(value, kept), messages=tuple(messages), files=made)


@contextlib.contextmanager
def _watched(worker: Any) -> Iterator[threading.Event]:
    """An event that is set when the running task is no longer wanted, or the worker ends."""
    cancel, done = threading.Event(), threading.Event()
    key = worker.get_current_task()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            task = worker.state.tasks.get(key)
            # Dask lets a running task of a tuner that cancelled or died run on, and marks it so.
            wanted = task is not None and task.state in ("executing", "long-running")
            if not wanted or worker.status.name not in ("running", "paused"):
                cancel.set()
                return

    watcher = threading.Thread(target=watch, name="task-watch", daemon=True)
    watcher.start()
    try:
        yield cancel
    finally:
        done.set()
        watcher.join()


def lacks(digests: Sequence[str], dask_worker: Any) -> tuple[str, ...]:
    """Out of band: which files the worker lacks."""
    return worker_files(dask_worker).lacks(digests)


async def put(run: str, pieces: Sequence[tuple[str, int, bytes, bool]], dask_worker: Any) -> None:
    """Out of band: pieces of files (digest, offset, bytes, whether it is the last)."""
    files = worker_files(dask_worker)
    for digest, offset, piece, last in pieces:
        await asyncio.to_thread(files.put, run, digest, offset, piece, last)


async def read(digest: str, offset: int, dask_worker: Any) -> bytes:
    """Out of band: a piece of a file that a task made."""
    return await asyncio.to_thread(worker_files(dask_worker).read, digest, offset)


async def forget(run: str, dask_worker: Any) -> None:
    """Out of band: a run is over."""
    await asyncio.to_thread(worker_files(dask_worker).forget, run)


async def serve_worker(
    scheduler: str,
    certificates: Path | None,
    *,
    announced: Announcement,
    name: str,
    files: WorkerFiles,
    listen: str | None = None,
) -> None:
    """Work for a scheduler until cancelled; one that is away is waited for.

    `listen` is the address to listen on; by default the system chooses.
    """
    secured = security(scheduler, certificates)
    quieten_dask()
    listen = listen or default_listen(scheduler)
    if listen is not None:
        security(listen, certificates)
    import dask

    with dask.config.set(_SETTINGS):
        while True:
            try:
                worker = await _join(scheduler, secured, announced, name, files, listen)
            except UNREACHABLE as error:
                _say(f"collage worker {name}: {scheduler} does not answer ({error}); trying again")
                await asyncio.sleep(_AGAIN_S)
                continue
            runtimes = ", ".join(sorted(announced.backends))
            _say(f"collage worker {name} works for {scheduler} with {runtimes}")
            try:
                await _until_finished(worker, files.folder / ALIVE)
            except asyncio.CancelledError:
                # Stop the task's child first; its tuner runs the task elsewhere.
                await worker.close(timeout=5, executor_wait=True)
                raise
            _say(f"collage worker {name}: the scheduler went away; looking for it")
            await asyncio.sleep(_AGAIN_S)


async def _until_finished(worker: Any, alive: Path) -> None:
    """Touch a file regularly while the worker is joined."""
    finished = asyncio.ensure_future(worker.finished())
    try:
        while not finished.done():
            alive.touch()
            await asyncio.wait([finished], timeout=_ALIVE_S)
    finally:
        finished.cancel()
        alive.unlink(missing_ok=True)


_SETTINGS: Mapping[str, Any] = {
    # Nothing but the task itself may use the processor.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.use-file-locking": False,
}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _join(
    scheduler: str,
    secured: Any,
    announced: Announcement,
    name: str,
    files: WorkerFiles,
    listen: str | None,
) -> Any:
    from distributed import Worker

    class Quiet(Worker):  # type: ignore[misc]
        """A worker that opens no other port: Dask's own pages need no certificate."""

        def start_http_server(self, *args: Any, **kwargs: Any) -> None:
            pass

    worker = Quiet(
        scheduler,
        host=listen,
        name=name,
        nthreads=1,
        memory_limit=0,
        resources=announced.resources,
        security=secured,
        startup_information={ANNOUNCEMENT: lambda worker: announced.as_data()},
        local_directory=str(files.folder / "dask"),
        death_timeout=30,
    )
    worker.collage_files = files
    try:
        return await worker
    except RuntimeError as error:
        # Dask wraps errors that it does not retry; only this one is about the scheduler.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise

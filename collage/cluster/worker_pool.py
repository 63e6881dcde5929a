"""A tuner's connection to the workers of one kind: sends remote calls and awaits results.

A task asks Dask for a slot, a kind of machine and runtimes. A worker that lacks files says so at once;
they are sent to it in pieces, and the task follows them.

Invariants: a task whose worker dies runs again, on another worker or the same; what is cancelled here
stops there; what a worker sends is decoded as plain data only.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from collage.backends.sandbox.codec import OWN_PACKAGES, decode, encode
from collage.cluster import worker as remote
from collage.cluster.connection import (
    UNREACHABLE,
    ClusterError,
    RemoteWorker,
    check_installed,
    members,
    security,
    unreachable,
)
from collage.cluster.remote_call import RemoteCall, RemoteResult
from collage.cluster.worker_files import PIECE_BYTES
from collage.partitioner.errors import CancelledError, CollageError
from collage.runner import NoWorkerError

_POLL_S = 0.05
_CONNECT_S = 10
_DEATHS = 3
# A worker that got files runs their task first.
_FOLLOWS_ITS_FILES = 10


class WorkerLostError(CollageError):
    """Workers died several times over one task."""


class WorkerPool:
    """A connection to a scheduler.

    Raises:
        ClusterError: it cannot be reached.
    """

    def __init__(self, address: str, certificates: Path | None) -> None:
        check_installed()
        self._address = address
        self._security = security(address, certificates)
        self._client: Any = None
        self._sent: dict[str, set[str]] = {}
        self._connect()

    def workers(self) -> list[RemoteWorker]:
        """The workers that are there now.

        Raises:
            ClusterError: the scheduler cannot be reached.
        """
        self._ensure_connected()
        try:
            known = self._client.sync(self._client.scheduler.identity, n_workers=-1)
        except UNREACHABLE as error:
            raise ClusterError(unreachable(self._address, error)) from None
        return members(known)

    def carry_out(
        self,
        remote_call: RemoteCall,
        files: Mapping[str, Path],
        resources: Mapping[str, float],
        near: str | None,
        cancel: threading.Event | None,
    ) -> RemoteResult:
        """Have a remote call run by a worker that has these resources.

        Args:
            remote_call: what to run.
            files: local path of each of its files, by digest.
            resources: in Dask's terms.
            near: the worker that probably gets it, which is sent its files beforehand; None for none.

        Raises:
            NoWorkerError: no worker has the resources.
            WorkerLostError: its worker died several times.
            ClusterError: the scheduler went away and does not come back.
        """
        deaths = 0
        content = encode(remote_call)
        pinned: str | None = None
        if near is not None:
            with contextlib.suppress(_Lost):
                self._send(near, remote_call, files, cancel)
        while True:
            try:
                outcome = self._attempt(content, remote_call, resources, pinned, cancel)
                if not outcome.missing:
                    return outcome
                pinned = outcome.address
                self._sent.get(pinned, set()).difference_update(outcome.missing)
                self._send(pinned, remote_call, files, cancel)
            except _Lost as lost:
                deaths += 1
                pinned = None
                if deaths == _DEATHS:
                    raise WorkerLostError(
                        f"{deaths} workers were lost over {remote_call.function} ({lost}); look at their logs"
                    ) from None

    def fetch(self, address: str, digest: str, destination: Path) -> None:
        """Copy a file that a worker made.

        Raises:
            WorkerLostError: the worker is gone.
        """
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            with destination.open("wb") as file:
                while piece := self._tell(address, remote.read, digest, file.tell()):
                    file.write(piece)
        except _Lost as lost:
            raise WorkerLostError(f"a worker was lost with what it had made ({lost})") from None

    def close(self, run: str) -> None:
        """Tell workers that a run is over, and leave."""
        with contextlib.suppress(ClusterError):
            there = {worker.address for worker in self.workers()}
            for address in there & self._sent.keys():
                with contextlib.suppress(_Lost):
                    self._tell(address, remote.forget, run)
        self._leave(timeout_s=2)

    def _attempt(
        self,
        content: bytes,
        remote_call: RemoteCall,
        resources: Mapping[str, float],
        pinned: str | None,
        cancel: threading.Event | None,
    ) -> RemoteResult:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError
        from distributed.scheduler import NoValidWorkerError

        self._ensure_connected()
        future = self._client.submit(
            remote.carry_out,
            content,
            pure=False,
            retries=0,
            resources=dict(resources),
            workers=[pinned] if pinned else None,
            priority=_FOLLOWS_ITS_FILES if pinned else 0,
        )
        try:
            while not future.done():
                if cancel is not None and cancel.is_set():
                    raise CancelledError("cancelled while a worker was at it")
                (cancel or threading.Event()).wait(_POLL_S)
            answer = future.result(timeout=_CONNECT_S)
        except KilledWorker as error:
            self._sent.pop(error.last_worker.address, None)
            raise _Lost(f"worker {error.last_worker.name} died") from None
        except remote.WorkerStopsError as error:
            raise _Lost(str(error)) from None
        except NoValidWorkerError:
            if pinned:
                raise _Lost(f"worker {pinned} is gone") from None
            raise NoWorkerError(
                "the last worker of the kind that measures for this job is gone; start it again, and tune "
                "again: what was measured is known"
            ) from None
        except (FutureCancelledError, OSError) as error:
            # Not cancelled here: the scheduler is gone with its state.
            self._reconnect(error, cancel)
            raise _Lost(str(error)) from None
        finally:
            with contextlib.suppress(Exception):  # without a scheduler there is nothing to release
                future.release()
        outcome = decode(answer, OWN_PACKAGES | {remote_call.module.partition(".")[0]})
        assert isinstance(outcome, RemoteResult)
        return outcome

    def _send(
        self,
        address: str,
        remote_call: RemoteCall,
        files: Mapping[str, Path],
        cancel: threading.Event | None,
    ) -> None:
        sent = self._sent.setdefault(address, set())
        unsure = sorted(remote_call.digests - sent)
        if not unsure:
            return
        lacking = self._tell(address, remote.lacks, unsure)
        for pieces in _loads({digest: files[digest] for digest in lacking}):
            if cancel is not None and cancel.is_set():
                raise CancelledError("cancelled while files were sent to a worker")
            self._tell(address, remote.put, remote_call.run, pieces)
        sent.update(unsure)

    def _tell(self, address: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on a worker beside its task."""
        self._ensure_connected()
        try:
            return self._client.run(function, *args, workers=[address])[address]
        except (*UNREACHABLE, KeyError) as error:
            self._sent.pop(address, None)
            raise _Lost(f"worker {address}: {str(error) or type(error).__name__}") from None

    def _ensure_connected(self) -> None:
        if self._client.status != "running":
            self._leave(timeout_s=1)
            self._connect()

    def _connect(self) -> None:
        from distributed import Client

        try:
            self._client = Client(
                self._address,
                security=self._security,
                timeout=_CONNECT_S,
                set_as_default=False,
                direct_to_workers=False,
            )
        except (*UNREACHABLE, AssertionError) as error:  # the latter: no event loop within Dask's 10 s
            raise ClusterError(unreachable(self._address, error)) from None

    def _leave(self, timeout_s: float) -> None:
        """Close the connection, also a broken one."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=timeout_s)
        if self._client.status != "closed":
            # A listener that failed to connect again fails each closing.
            self._client._handle_report_task = None
            with contextlib.suppress(Exception):
                self._client.close(timeout=timeout_s)

    def _reconnect(self, error: BaseException, cancel: threading.Event | None) -> None:
        """Wait for the scheduler to come back, with its workers."""
        self._leave(timeout_s=1)
        deadline = time.monotonic() + 30
        while True:
            if cancel is not None and cancel.is_set():
                raise CancelledError("cancelled while the scheduler was away")
            try:
                self._connect()
                return
            except ClusterError:
                if time.monotonic() > deadline:
                    raise ClusterError(unreachable(self._address, error)) from None


class _Lost(Exception):  # noqa: N818  (it is no error of ours)
    """A worker is gone."""


def _loads(files: Mapping[str, Path]) -> Iterator[list[tuple[str, int, bytes, bool]]]:
    """Files in pieces, batched into messages of limited size."""
    load: list[tuple[str, int, bytes, bool]] = []
    size = 0
    for digest, offset, piece, last in _pieces(files.items()):
        if load and size + len(piece) > PIECE_BYTES:
            yield load
            load, size = [], 0
        load.append((digest, offset, piece, last))
        size += len(piece)
    if load:
        yield load


def _pieces(files: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, int, bytes, bool]]:
    for digest, path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            offset = 0
            while True:
                piece = file.read(PIECE_BYTES)
                yield digest, offset, piece, offset + len(piece) >= size
                offset += len(piece)
                if offset >= size:
                    break

"""A tuning's runtimes on remote workers of one kind: `collage.runner.Runner` over a Dask cluster.

When its targets are checked, a tuning chooses one kind of machine that has them all and stays with it.
A target that no worker has is an error at once, or after `wait_s`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from collage.backends.machine.hardware import Hardware
from collage.backends.registry import check_options
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.cluster.connection import CAPABILITY, KIND, SLOT, Announcement, RemoteWorker, own_version
from collage.cluster.remote_call import Packer, map_paths
from collage.cluster.worker_pool import WorkerPool
from collage.partitioner.errors import CancelledError, TargetError
from collage.partitioner.target import Target
from collage.runner import NoWorkerError, Runner, TargetFacts, describe, host_of

_LOOK_S = 0.5
_FACTS_S = 120.0


class DaskRunner(Runner):
    """Workers of one kind; use it as a context manager.

    Args:
        certificates: a folder with certificate and key, or None on this machine alone.
        wait_s: how long to wait for a worker that has all targets.
        say: is told once when no worker has the targets yet.

    Raises:
        ClusterError: the scheduler cannot be reached.
        BadInputError: address and certificates do not go together.
    """

    def __init__(
        self,
        scheduler: str,
        certificates: Path | None = None,
        *,
        wait_s: float = 0.0,
        cancel: threading.Event | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._packer = Packer(uuid.uuid4().hex)
        self._pool = WorkerPool(scheduler, certificates)
        self._wait_s = wait_s
        self._cancel = cancel
        self._say = say
        self._kind: Announcement | None = None
        self._needs: dict[str, float] = {}
        self._last: RemoteWorker | None = None
        self._facts: dict[Target, TargetFacts] = {}

    def __enter__(self) -> DaskRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close(self._packer.run)

    @property
    def hardware(self) -> Hardware:  # type: ignore[override]
        return self._known.hardware

    @property
    def host(self) -> str:
        """The machine of the worker that did the last task."""
        return self._last.announced.host if self._last is not None else self._known.host

    @property
    def threads(self) -> int:
        return self._known.threads

    @property
    def python(self) -> str:
        return self._known.python

    def facts(self, target: Target) -> TargetFacts:
        if target not in self._facts:
            try:
                limits = ChildLimits(timeout_s=_FACTS_S, address_bytes=0, gpus=True)
                self._facts[target] = self.run(describe, target, limits=limits, cancel=self._cancel)
            except ChildFailed as failure:
                said = failure.reason.removeprefix("TargetError: ")
                raise TargetError(f"on the workers: {said}") from None
        return self._facts[target]

    def check(self, targets: Sequence[Target]) -> list[TargetFacts]:
        """Choose a kind of machine that has all targets.

        Raises:
            NoWorkerError: there is none, and none came within the time to wait.
            TargetError, BadInputError: as for every runner.
        """
        label = host_of(targets)
        wanted = sorted({check_options(target).name for target in targets})
        chosen = self._choose(wanted, label)
        self._kind = chosen.announced
        caps = {f"{CAPABILITY}{backend}": 1.0 for backend in wanted}
        self._needs = {SLOT: 1.0, f"{KIND}{chosen.announced.kind}": 1.0, **caps}
        self._last = chosen
        return [self.facts(target) for target in targets]

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        limits: ChildLimits | None = None,
        cancel: threading.Event | None = None,
        on_message: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call a function in a sandboxed child on a worker, alone on its device.

        Messages arrive together when the child has ended.
        """
        remote_call = self._packer.pack(function, args, limits or ChildLimits())
        near = self._last.address if self._last is not None else None
        outcome = self._pool.carry_out(remote_call, self._packer.files, self._needs, near, cancel)
        self._see(outcome.address)
        if on_message is not None:
            for message in outcome.messages:
                on_message(message)
        if outcome.failure is not None:
            kind, reason, error_type, detail = outcome.failure
            raise ChildFailed(kind, reason, error_type, detail)
        for token, digest in outcome.files.items():
            path = self._packer.local(PurePosixPath(token))
            self._pool.fetch(outcome.address, digest, Path(path))
        return map_paths(outcome.value, self._here)

    def alone(self, cancel: threading.Event | None) -> contextlib.AbstractContextManager[bool]:
        """Every task has its worker's device to itself, so nothing is locked here."""
        return contextlib.nullcontext(True)

    def _here(self, path: PurePath) -> PurePath:
        return Path(self._packer.local(path))

    @property
    def _known(self) -> Announcement:
        assert self._kind is not None, "check must come first"
        return self._kind

    def _see(self, address: str) -> None:
        if self._last is not None and self._last.address == address:
            return
        found = (worker for worker in self._pool.workers() if worker.address == address)
        self._last = next(found, self._last)

    def _choose(self, wanted: Sequence[str], label: str | None) -> RemoteWorker:
        """A worker of the kind to choose: the kind with the most of them."""
        deadline = time.monotonic() + self._wait_s
        told = False
        while True:
            workers = self._pool.workers()
            able = [worker for worker in workers if _lack(worker.announced, wanted, label) is None]
            if able:
                kinds = [worker.announced.kind for worker in able]
                return min(
                    able,
                    key=lambda w: (-kinds.count(w.announced.kind), w.announced.kind, w.busy, w.name),
                )
            said = _nobody(workers, wanted, label)
            if time.monotonic() >= deadline:
                raise NoWorkerError(said + _advice(self._wait_s))
            if not told:
                self._say(f"{said}; waiting {self._wait_s:g} s for one")
                told = True
            if (self._cancel or threading.Event()).wait(_LOOK_S):
                raise CancelledError("cancelled while waiting for a worker")


def _lack(said: Announcement, wanted: Sequence[str], label: str | None) -> str | None:
    """Why a worker cannot take a tuning, or None."""
    if said.collage != own_version():
        return f"it runs Collage {said.collage}, and this is {own_version()}"
    if label is not None and said.hardware.label != label:
        own = f"its label is {said.hardware.label!r}" if said.hardware.label else "it has no label"
        return f"{own}, not {label!r}"
    reasons = [
        f"it lacks {backend} ({said.lacking.get(backend, 'unknown there')})"
        for backend in wanted
        if backend not in said.backends
    ]
    return "; ".join(reasons) or None


def _nobody(workers: Sequence[RemoteWorker], wanted: Sequence[str], label: str | None) -> str:
    asked = " and ".join(wanted) + (f" on -host={label}" if label is not None else "")
    if not workers:
        return f"no worker has {asked}: none is connected"
    reasons = "; ".join(f"{w.name}: {_lack(w.announced, wanted, label)}" for w in workers)
    return f"no worker has {asked} ({reasons})"


def lacking(workers: Sequence[RemoteWorker], targets: Sequence[Target]) -> str | None:
    """Why none of the workers can take a tuning of these targets; None where one can."""
    label, wanted = host_of(targets), sorted({check_options(target).name for target in targets})
    if any(_lack(worker.announced, wanted, label) is None for worker in workers):
        return None
    return _nobody(workers, wanted, label)


def _advice(wait_s: float) -> str:
    if wait_s:
        return f"; waited {wait_s:g} s for one"
    return "; start a worker that has it, or ask to wait for one: wait_for_worker_s, --wait-for-worker SECONDS"


@contextlib.contextmanager
def runner_for(
    scheduler: str | None,
    certificates: Path | None,
    *,
    wait_s: float,
    cancel: threading.Event | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Runner]:
    """Workers where a scheduler is given, else this machine; see `DaskRunner`."""
    if scheduler is None:
        yield Runner()
        return
    with DaskRunner(scheduler, certificates, wait_s=wait_s, cancel=cancel, say=say) as runner:
        yield runner

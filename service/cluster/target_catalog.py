"""The targets of this machine, found out once in a child, or of its workers.

A request's targets are checked before a job is made: names and options, and availability where this
machine measures. Workers may come while a job waits, so there the job itself says when none has its
targets.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import structlog

from collage.backends.contract import Available
from collage.backends.machine.hardware import hardware
from collage.backends.registry import backends, check_options, options_of
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.cluster.connection import ClusterError, RemoteWorker
from collage.partitioner.errors import TargetError
from collage.partitioner.target import Target
from collage.service.cluster.workers import RemoteWorkers

_MAX_TARGETS = 32

# An option that names a file would let a request read this machine's disk.
_FILE_OPTIONS = frozenset({"rules"})

_log = structlog.get_logger("collage.catalog")


def describe() -> dict[str, Any]:
    """Backends and hardware of this machine, as JSON-ready data (loads runtimes: runs in a child)."""
    found = []
    for name, backend in backends().items():
        probed = backend.probe()
        available = isinstance(probed, Available)
        found.append(
            {
                "name": name,
                "summary": backend.summary,
                "available": available,
                "version": probed.version if isinstance(probed, Available) else None,
                "reason": None if isinstance(probed, Available) else probed.reason,
                "how_to_install": None if isinstance(probed, Available) else probed.how_to_install,
                "options": [
                    {
                        "name": option.name,
                        "default": option.default,
                        "choices": list(option.choices),
                        "help": option.help,
                    }
                    for option in options_of(backend)
                    if option.name not in _FILE_OPTIONS
                ],
            }
        )
    described = hardware()
    return {
        "targets": found,
        "hardware": {
            "digest": described.digest,
            "description": described.describe(),
            "label": described.label,
        },
    }


def refuse_files(target: Target) -> None:
    """Refuse a target of a request that names a file of this machine.

    Raises:
        TargetError: it does.
    """
    for name, _ in target.options:
        if name in _FILE_OPTIONS:
            raise TargetError(f"target {str(target)!r}: -{name} names a file; it works locally only")


class TargetCatalog:
    """The targets that can be measured; safe from many threads."""

    def __init__(self, remote_workers: RemoteWorkers) -> None:
        self._remote_workers = remote_workers
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None

    def get(self) -> dict[str, Any]:
        """The description of this machine, made on the first call.

        Raises:
            ChildFailed: probing failed; the next call tries again.
        """
        with self._lock:
            if self._found is None:
                self._found = run_in_child(
                    describe, limits=ChildLimits(timeout_s=120, address_bytes=0, gpus=True)
                )
            return self._found

    def targets(self) -> list[dict[str, Any]]:
        """Every backend, and whether this machine or a worker has it.

        Raises:
            ChildFailed: as for `get`.
        """
        own: list[dict[str, Any]] = self.get()["targets"]
        if not self._remote_workers.measures:
            return own
        try:
            workers = self._remote_workers.workers()
        except ClusterError as error:
            lost = {"available": False, "version": None, "reason": str(error), "how_to_install": None}
            return [{**entry, **lost} for entry in own]
        return [{**entry, **_among(workers, entry["name"])} for entry in own]

    def prepare(self) -> None:
        """Probe in the background, so that the first request need not wait."""
        threading.Thread(target=self._prepare, name="catalog", daemon=True).start()

    def check(self, texts: Sequence[str]) -> list[str]:
        """The targets in canonical text, each once.

        Raises:
            TargetError: one is misspelled, unknown, not installed, or names a file.
        """
        if not texts:
            raise TargetError("no target is given; name at least one, for example 'onnxruntime'")
        if len(texts) > _MAX_TARGETS:
            raise TargetError(f"{len(texts)} targets are given; at most {_MAX_TARGETS} are taken")
        targets = list(dict.fromkeys(Target.parse(text) for text in texts))
        known = {entry["name"]: entry for entry in self.get()["targets"]}
        for target in targets:
            check_options(target)
            refuse_files(target)
            entry = known.get(target.backend)
            if self._remote_workers.measures:
                continue
            if entry is not None and not entry["available"]:
                raise TargetError(
                    f"target {str(target)!r}: {entry['reason']}; to install it on the server: "
                    f"{entry['how_to_install']}"
                )
        return [str(target) for target in targets]

    def _prepare(self) -> None:
        try:
            self.get()
        except ChildFailed as error:
            _log.error("probing the backends failed", error=str(error))


def _among(workers: Sequence[RemoteWorker], backend: str) -> dict[str, Any]:
    """Whether some worker has a backend, as an entry of `describe`."""
    versions = sorted(
        {w.announced.backends[backend] for w in workers if backend in w.announced.backends}
    )
    if versions:
        there = {"available": True, "version": ", ".join(versions)}
        return {**there, "reason": None, "how_to_install": None}
    reasons = [f"{w.name}: {w.announced.lacking.get(backend, 'unknown there')}" for w in workers]
    return {
        "available": False,
        "version": None,
        "reason": "no worker has it"
        + (f" ({'; '.join(reasons)})" if reasons else ": none is connected"),
        "how_to_install": None,
    }

"""The workers on other machines that measure for this server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from collage.cluster.connection import ClusterError, RemoteWorker, find_workers
from collage.cluster.dask_runner import lacking
from collage.partitioner.target import Target
from collage.service.settings import Settings

_FRESH_S = 2.0
# A scheduler that does not answer costs seconds.
_AWAY_S = 10.0


class RemoteWorkers:
    """Asks the scheduler every two seconds at most; safe from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._found: list[RemoteWorker] = []
        self._failure: ClusterError | None = None

    @property
    def measures(self) -> bool:
        """True when workers measure, and not this machine."""
        return self._settings.scheduler is not None

    def lacking(self, targets: Sequence[str]) -> str | None:
        """Why no worker can take a tuning of these targets; None where one can."""
        try:
            return lacking(self.workers(), [Target.parse(text) for text in targets])
        except ClusterError:
            return "the scheduler of the workers does not answer"

    def workers(self) -> list[RemoteWorker]:
        """The workers that are there.

        Raises:
            ClusterError: the scheduler cannot be reached.
        """
        if self._settings.scheduler is None:
            return []
        with self._lock:
            fresh_s = _FRESH_S if self._failure is None else _AWAY_S
            if time.monotonic() - self._asked_at > fresh_s:
                self._failure = None
                try:
                    self._found = find_workers(
                        self._settings.scheduler, self._settings.scheduler_certificates
                    )
                except ClusterError as error:
                    self._failure = error
                self._asked_at = time.monotonic()
            if self._failure is not None:
                raise self._failure
            return self._found

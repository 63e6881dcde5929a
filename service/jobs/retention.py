"""Jobs and files that are not kept any more: removed on request, by age and by size."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from collage.cost_db.jobs.removal import JobRemoval
from collage.cost_db.stored_models import BlobRegister
from collage.service.settings import Settings
from collage.service.storage.blobs import BlobFiles

_KEEP_UNUSED = timedelta(days=30)


class Retention:
    """Removes rows, then the bytes that no row refers to; safe from many threads and servers."""

    def __init__(
        self, settings: Settings, removal: JobRemoval, register: BlobRegister, files: BlobFiles
    ) -> None:
        self._settings = settings
        self._removal = removal
        self._register = register
        self._files = files

    def remove(self, job_id: str) -> bool:
        """Remove a finished job and the files that are its own; False where there is none.

        Raises:
            BadInputError: the job has not ended.
        """
        unregistered = self._removal.remove(job_id)
        self._delete(unregistered or ())
        return unregistered is not None

    def tidy(self) -> int:
        """Remove what the settings do not keep; returns how many jobs went."""
        settings = self._settings
        before = None
        if settings.keep_jobs_days is not None:
            before = datetime.now(UTC) - timedelta(days=settings.keep_jobs_days)
        removed = 0
        if before is not None or settings.keep_results_bytes is not None:
            for job_id in self._removal.too_many(before, settings.keep_results_bytes):
                removed += self.remove(job_id)
        self._delete(self._register.drop_unused(datetime.now(UTC) - _KEEP_UNUSED))
        return removed

    def _delete(self, hashes: Iterable[str]) -> None:
        for sha256 in hashes:
            self._register.delete_bytes(sha256, self._files.delete)

"""Files that are kept, and jobs and files that are not any more: removed on request, by age and by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from collage.cost_db.jobs.removal import JobRemoval
from collage.cost_db.stored_models import BlobRegister, RegisteredBlob
from collage.service.settings import Settings
from collage.service.storage.blobs import Blob, BlobFiles, BlobMissingError

_KEEP_UNUSED = timedelta(days=30)
_KEEP_UNREGISTERED = timedelta(days=1)
_BATCH = 500
_KEEP_TRIES = 3


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
        self.delete(unregistered or ())
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
        self.delete(self._register.drop_unused(datetime.now(UTC) - _KEEP_UNUSED))
        self._delete_unregistered()
        return removed

    def keep(self, store: Callable[[], Blob], media_type: str) -> RegisteredBlob:
        """Store and register a file.

        Args:
            store: writes it where its bytes are not there; called again where they were deleted meanwhile.
            media_type: of the file.

        Raises:
            BlobMissingError: they were deleted each time.
        """
        for _ in range(_KEEP_TRIES):
            blob = store()
            registered = self._register.add(blob.sha256, blob.size_bytes, media_type)
            # Whoever deletes the same bytes has looked for a row before this one was there.
            if self._files.has(blob.sha256):
                return registered
        raise BlobMissingError(f"blob {blob.sha256[:12]} was deleted while it was stored; try again")

    def take_back(self, added: Sequence[RegisteredBlob]) -> None:
        """Remove files that were registered for a request that is refused."""
        self.delete(self._register.take_back(added))

    def _delete_unregistered(self) -> None:
        """Delete files that a crash left between storing and registering.

        Files from before the first that the database knows stay: they may be another database's.
        """
        begin, end = self._register.begins_at(), datetime.now(UTC) - _KEEP_UNREGISTERED
        if begin is None or begin > end:
            return
        names = self._files.names()
        for first in range(0, len(names), _BATCH):
            for name in self._register.unknown(names[first : first + _BATCH]):
                written_at = self._files.written_at(name)
                if written_at is not None and begin <= written_at < end:
                    self.delete([name])

    def delete(self, hashes: Iterable[str]) -> None:
        """Delete the bytes of files that are not registered."""
        for sha256 in hashes:
            self._register.delete_bytes(sha256, self._files.delete)

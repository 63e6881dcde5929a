"""The files of one worker: blobs by their SHA-256, links to them for each call, and folders of runs.

Layout: `blobs/SHA256`, `arriving/…` (blobs not yet complete), `work/CALL/N/NAME` (hard links to blobs),
`runs/RUN/ID/…` (folders that calls of a run may write).

Invariant: a file in `blobs` is complete and has the digest that it is named by.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath

from collage.cluster.remote_call import FOLDERS, PLACES
from collage.disk_space import evict_oldest
from collage.partitioner.errors import CollageError

PIECE_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
# A run's folders unused for so long are those of a tuner that died.
_FORGOTTEN_S = 3600.0


class WorkerFiles:
    """Keeps files in a folder of its own; safe from several threads.

    Args:
        folder: for all of them; it is emptied at the start.
        most_bytes: of blobs, and of each folder of a run; the longest unused go first.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        for name in ("blobs", "arriving", "work", "runs"):
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir(parents=True)

    def lacks(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Which of these blobs are not here."""
        return tuple(sorted(digest for digest in digests if not self._blob(digest).exists()))

    def put(self, run: str, digest: str, offset: int, piece: bytes, last: bool) -> None:
        """Add the next piece of a blob.

        Raises:
            CollageError: the bytes have another digest, or a piece before this one is missing.
        """
        blob = self._blob(digest)
        arriving = self.folder / "arriving" / f"{_plain(run)}-{digest}"
        with arriving.open("r+b" if offset else "wb") as file:
            if file.seek(0, os.SEEK_END) != offset:
                raise CollageError(f"a piece of file {digest} is missing")
            file.write(piece)
        if not last:
            return
        with arriving.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            arriving.unlink()
            raise CollageError(f"file {digest} arrived with other bytes: {found}")
        arriving.chmod(0o444)
        arriving.replace(blob)
        self._evict()

    def read(self, digest: str, offset: int) -> bytes:
        """A piece of a blob."""
        with self._blob(digest).open("rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)

    @contextlib.contextmanager
    def laid_out(self, places: Mapping[str, Mapping[str, str]]) -> Iterator[Path | None]:
        """A temporary folder with these places; None where a blob is missing."""
        base = Path(tempfile.mkdtemp(dir=self.folder / "work"))
        try:
            yield base if self._link(base, places) else None
        finally:
            shutil.rmtree(base, ignore_errors=True)

    def _link(self, base: Path, places: Mapping[str, Mapping[str, str]]) -> bool:
        for place, files in places.items():
            folder = base / _plain(place)
            folder.mkdir()
            for name, digest in files.items():
                if PurePosixPath(name).name != name:
                    raise CollageError(f"{name!r} is not the name of a file")
                try:
                    # Linked first: another task may evict blobs.
                    (folder / name).hardlink_to(self._blob(digest))
                except FileNotFoundError:
                    return False
                os.utime(folder / name)
        return True

    def here(self, base: Path, run: str, token: PurePath) -> Path:
        """The local path of a token's file or folder; folders are made.

        Args:
            base: what `laid_out` gave.
            run: that the folders belong to.
            token: as `collage.cluster.remote_call` makes them.
        """
        kind, name, *rest = token.parts
        if ".." in rest or kind not in (PLACES, FOLDERS):
            raise CollageError(f"{token} is no token of this remote call")
        if kind == PLACES:
            return base.joinpath(_plain(name), *rest)
        folder = self.folder / "runs" / _plain(run) / _plain(name)
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder.parent)
        evict_oldest(folder, self._most_bytes)
        return folder.joinpath(*rest)

    def keep(self, run: str, path: PurePath) -> tuple[PurePath, dict[str, str]]:
        """A path of a result as a token, with the files there and beside it as blobs, by token.

        Paths outside of the run's folders stay as they are.
        """
        base = self.folder / "runs" / _plain(run)
        real = Path(path).resolve()
        if not real.is_relative_to(base.resolve()) or not real.is_file():
            return path, {}
        token = PurePosixPath(FOLDERS, *real.relative_to(base.resolve()).parts)
        kept = {}
        for file in sorted(real.parent.iterdir()):
            if file.is_file() and not file.is_symlink():
                kept[str(token.parent / file.name)] = self._adopt(file)
        return token, kept

    def forget(self, run: str) -> None:
        shutil.rmtree(self.folder / "runs" / _plain(run), ignore_errors=True)
        for arriving in (self.folder / "arriving").glob(f"{_plain(run)}-*"):
            arriving.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the folders of tuners that died."""
        old = time.time() - _FORGOTTEN_S
        for folder in (self.folder / "runs").iterdir():
            with contextlib.suppress(OSError):
                if folder.stat().st_mtime < old:
                    self.forget(folder.name)

    def _adopt(self, file: Path) -> str:
        # A copy, since the child that made the file might still change it.
        with tempfile.NamedTemporaryFile(dir=self.folder / "arriving", delete=False) as copy:
            with file.open("rb") as made:
                shutil.copyfileobj(made, copy)
            copy.seek(0)
            digest = hashlib.file_digest(copy, "sha256").hexdigest()
        Path(copy.name).replace(self._blob(digest))
        return digest

    def _blob(self, digest: str) -> Path:
        if not _SHA256.match(digest):
            raise CollageError(f"{digest!r} is not a SHA-256")
        return self.folder / "blobs" / digest

    def _evict(self) -> None:
        with self._lock:
            found = []
            for blob in (self.folder / "blobs").iterdir():
                with contextlib.suppress(OSError):
                    status = blob.stat()
                    found.append((status.st_mtime_ns, status.st_size, blob))
            total = sum(size for _, size, _ in found)
            for _, size, blob in sorted(found)[:-1]:
                if total <= self._most_bytes:
                    return
                blob.unlink(missing_ok=True)
                total -= size


def _plain(name: str) -> str:
    if not _PLAIN.match(name):
        raise CollageError(f"{name!r} is not a name that a file of a remote call may have")
    return name

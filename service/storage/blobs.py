"""Files by their content: a blob's name is the SHA-256 of its bytes, so a file is kept once.

Blobs lie in a folder or in anything fsspec reaches (`s3://bucket/prefix`). A blob is written under a
temporary name and moved when it is complete. The server never looks inside.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import fsspec

from collage.partitioner.errors import CollageError

_CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"[0-9a-f]{64}\Z")
_ARRIVING = re.compile(r"[0-9a-f]{64}\.upload-\w+\Z", re.A)  # while `keep` writes it


class BlobMissingError(CollageError):
    """A blob is not in the store."""


class UploadTooLargeError(CollageError):
    """More bytes came than are allowed."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"more than the allowed {limit_bytes} bytes; raise COLLAGE_MAX_UPLOAD_BYTES")
        self.limit_bytes = limit_bytes


@dataclass(frozen=True)
class Blob:
    """A stored file."""

    sha256: str
    size_bytes: int


class BlobWriter:
    """Incoming bytes: written to disk while they are hashed. Use as a context manager.

    Args:
        directory: where the bytes wait until they are complete.
        limit_bytes: refuse more than this.
    """

    def __init__(self, directory: Path, limit_bytes: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=directory, prefix="upload-")
        self.path = Path(name)
        self.size_bytes = 0
        self._file = os.fdopen(handle, "wb")
        self._hash = hashlib.sha256()
        self._limit_bytes = limit_bytes

    def write(self, data: bytes) -> None:
        """Add the next bytes.

        Raises:
            UploadTooLargeError: it is more than the limit; nothing is kept.
        """
        self.size_bytes += len(data)
        if self._limit_bytes is not None and self.size_bytes > self._limit_bytes:
            raise UploadTooLargeError(self._limit_bytes)
        self._hash.update(data)
        self._file.write(data)

    @property
    def sha256(self) -> str:
        """The hash of what came so far."""
        return self._hash.hexdigest()

    def flush(self) -> None:
        """Bring everything to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk did not take the last bytes
            self._file.close()


class BlobFiles:
    """The blobs under one address (`collage.cost_db.stored_models` has their register).

    Args:
        url: a folder as `file:///…`, or an address that fsspec knows.
        spool: a local folder for incoming bytes and for copies of remote blobs.
    """

    def __init__(self, url: str, spool: Path) -> None:
        self._files, root = fsspec.url_to_fs(url)
        self._root = str(root).rstrip("/")
        self._files.makedirs(self._root, exist_ok=True)
        self.spool = spool
        spool.mkdir(parents=True, exist_ok=True)

    def writer(self, limit_bytes: int | None = None) -> BlobWriter:
        """Where the bytes of a new blob go; `keep` makes them one."""
        return BlobWriter(self.spool, limit_bytes)

    def keep(self, writer: BlobWriter) -> Blob:
        """Store what a writer got; it is there for good when this returns."""
        writer.flush()
        blob = Blob(writer.sha256, writer.size_bytes)
        address = self._address(blob.sha256)
        if not self._files.exists(address):
            self._files.makedirs(self._files._parent(address), exist_ok=True)
            arriving = f"{address}.{writer.path.name}"
            try:
                self._files.put_file(str(writer.path), arriving)
                self._files.mv(arriving, address)
            except OSError:  # a full disk: half a file would only keep it full
                with contextlib.suppress(OSError):
                    self._files.rm_file(arriving)
                raise
        return blob

    def keep_file(self, path: Path) -> Blob:
        """Store a copy of a local file."""
        with self.writer() as writer, path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                writer.write(chunk)
            return self.keep(writer)

    def keep_bytes(self, data: bytes) -> Blob:
        """Store bytes."""
        with self.writer() as writer:
            writer.write(data)
            return self.keep(writer)

    def names(self) -> list[str]:
        """The names of all files, of those that arrive too."""
        self._files.invalidate_cache()
        names = (path.rsplit("/", 1)[-1] for path in self._files.find(self._root))
        return [name for name in names if _NAME.match(name) or _ARRIVING.match(name)]

    def written_at(self, name: str) -> datetime | None:
        """When a file of `names` was written; None where nobody can tell."""
        # It is removed meanwhile, or this kind of storage has no times.
        with contextlib.suppress(FileNotFoundError, NotImplementedError):
            found = self._files.modified(self._address(name))
            return found if isinstance(found, datetime) and found.tzinfo is not None else None
        return None

    def size_bytes(self, sha256: str) -> int:
        """A blob's size.

        Raises:
            BlobMissingError: it is not there.
        """
        try:
            return int(self._files.size(self._address(sha256)))
        except FileNotFoundError:
            raise BlobMissingError(f"blob {sha256[:12]} is not in the store any more") from None

    def has(self, sha256: str) -> bool:
        """True when a blob is there."""
        return bool(self._files.exists(self._address(sha256)))

    def chunks(self, sha256: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes of a blob from `begin` to before `end`, piece by piece."""
        with self._open(sha256) as file:
            file.seek(begin)
            left = (self.size_bytes(sha256) if end is None else end) - begin
            while chunk := file.read(min(left, _CHUNK_BYTES)):
                left -= len(chunk)
                yield chunk

    def read(self, sha256: str) -> bytes:
        """All bytes of a (small) blob."""
        with self._open(sha256) as file:
            return bytes(file.read())

    def copy_to(self, sha256: str, path: Path) -> None:
        """Put a copy of a blob at a local path."""
        with self._open(sha256) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)

    def delete(self, sha256: str) -> None:
        """Delete a blob, or another file of `names`, if it is there."""
        address = self._address(sha256)
        if self._files.exists(address):
            self._files.rm_file(address)

    def _open(self, sha256: str) -> Any:
        try:
            return self._files.open(self._address(sha256), "rb")
        except FileNotFoundError:
            raise BlobMissingError(f"blob {sha256[:12]} is not in the store any more") from None

    def _address(self, name: str) -> str:
        # Names become paths, so only hashes may pass.
        if not (_NAME.match(name) or _ARRIVING.match(name)):
            raise ValueError("a blob's name is 64 hexadecimal digits")
        return f"{self._root}/{name[:2]}/{name}"

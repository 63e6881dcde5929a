"""A source: the user's model, as an ONNX file in a folder of its own.

A source is an ONNX file, or a zip with one ONNX file and its external data. Entries, sizes, ratio,
names and links of a zip are checked before a byte is written, and sizes again while it is unpacked.
What macOS adds to a zip is left out.
"""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path, PurePosixPath

from collage.partitioner.errors import ModelError

MAX_ENTRIES = 4096
MAX_TOTAL_BYTES = 64 << 30
MAX_RATIO = 200
_RATIO_COUNTS_FROM_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
# macOS keeps what its file system knows of a file beside it, under names that end alike.
_MACOS_FOLDER, _MACOS_PREFIX = "__MACOSX", "._"


def model_file(source: Path, scratch: Path) -> Path:
    """The ONNX file of a source; a zip is unpacked into `scratch` first.

    Raises:
        ModelError: the source is missing, or a zip that is unsafe or has not exactly one ONNX file.
    """
    if not source.is_file():
        raise ModelError(f"there is no model file {source}")
    if not zipfile.is_zipfile(source) or not _starts_like_zip(source):
        return source
    try:
        with zipfile.ZipFile(source) as archive:
            entries = _checked_entries(archive)
            for entry, name in entries:
                _unpack(archive, entry, scratch / name)
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
    ) as error:
        raise ModelError(f"zip {source.name} cannot be unpacked: {error}") from error
    models = [name for _, name in entries if name.suffix.lower() == ".onnx"]
    if len(models) != 1:
        found = ", ".join(str(name) for name in models) or "none"
        raise ModelError(
            f"a zip must hold exactly one .onnx file and its external data; found: {found}"
        )
    return scratch / models[0]


def _starts_like_zip(source: Path) -> bool:
    with source.open("rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def _checked_entries(archive: zipfile.ZipFile) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    files = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(files) > MAX_ENTRIES:
        raise ModelError(f"the zip has {len(files)} files; at most {MAX_ENTRIES} are allowed")
    total = sum(entry.file_size for entry in files)
    if total > MAX_TOTAL_BYTES:
        raise ModelError(f"the zip unpacks to {total} bytes; at most {MAX_TOTAL_BYTES} are allowed")
    packed = max(1, sum(entry.compress_size for entry in files))
    if total > _RATIO_COUNTS_FROM_BYTES and total > MAX_RATIO * packed:
        raise ModelError(
            f"the zip unpacks to {total // packed} times its size; {MAX_RATIO} is the limit"
        )
    names = [_safe_name(entry) for entry in files]
    if len(set(names)) != len(names):
        raise ModelError("the zip has two files of one name")
    return [(file, name) for file, name in zip(files, names, strict=True) if not _is_of_macos(name)]


def _is_of_macos(name: PurePosixPath) -> bool:
    return _MACOS_FOLDER in name.parts[:1] or name.name.startswith(_MACOS_PREFIX)


def _safe_name(entry: zipfile.ZipInfo) -> PurePosixPath:
    name = PurePosixPath(entry.filename)
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        raise ModelError(f"zip entry {entry.filename!r} is a link or a device; only files are allowed")
    windows_like = "\\" in entry.filename or ":" in entry.filename
    if name.is_absolute() or ".." in name.parts or windows_like or "\0" in entry.filename:
        raise ModelError(f"zip entry {entry.filename!r} points outside the zip")
    return name


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    with archive.open(entry) as packed, path.open("xb") as file:
        while chunk := packed.read(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise ModelError(f"zip entry {entry.filename!r} is larger than it says")
            file.write(chunk)

"""A call to another machine: a function's name, its arguments as plain data, and its files.

Terms: paths in arguments become *tokens*. `places/N/NAME` is a file, sent with all files beside it and
named by its SHA-256. `folders/ID` is a folder that may be written: it starts empty on the other machine
and stays for the calls of one run; only those of its files come back that the result names.

Invariant: both ways hold plain data (`collage.backends.sandbox.codec`): decoding runs no code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from collage.backends.sandbox.codec import encode
from collage.backends.sandbox.limits import ChildLimits, FailureKind

PLACES, FOLDERS = "places", "folders"


@dataclass(frozen=True)
class RemoteCall:
    """A function's name, its encoded arguments, and the files they name."""

    module: str  # of the function
    function: str  # its name in the module
    # arguments and limits, encoded; the function's module must be imported before it is decoded
    content: bytes
    run: str  # names the tuning run that its folders belong to
    places: Mapping[str, Mapping[str, str]]  # per folder of files the SHA-256 of each, by name

    @property
    def digests(self) -> set[str]:
        return {digest for files in self.places.values() for digest in files.values()}


@dataclass(frozen=True)
class RemoteResult:
    """What a worker did of a remote call."""

    address: str
    missing: tuple[str, ...] = ()  # files that the worker lacks; where there are any, nothing was done
    value: Any = None  # what the function returned
    # kind, reason, type of error and detail of a child that failed, or None
    failure: tuple[FailureKind, str, str, str] | None = None
    messages: tuple[Any, ...] = ()  # that the child sent, in order
    # SHA-256 of each file that `value` names, by token
    files: Mapping[str, str] = field(default_factory=dict)


class Packer:
    """Makes the remote calls of one run, and knows the local path of each token."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.files: dict[str, Path] = {}
        self._folders: dict[str, Path] = {}
        self._digests: dict[tuple[str, int, int, int], str] = {}

    def pack(
        self, function: Callable[..., Any], args: tuple[Any, ...], limits: ChildLimits
    ) -> RemoteCall:
        """A call to send; `files` has the local path of each of its files.

        Raises:
            ValueError: the function cannot be found by its name.
        """
        if function.__module__ == "__main__" or "." in function.__qualname__:
            raise ValueError(f"{function.__qualname__} must be a function of an importable module")
        places: dict[str, dict[str, str]] = {}
        parents: dict[Path, str] = {}

        def token(path: PurePath) -> PurePath:
            whole = Path(path).absolute()
            if whole.is_dir():
                return self._folder(whole)
            if not whole.exists():
                return self._folder(whole.parent) / whole.name
            if whole.parent not in parents:
                parents[whole.parent] = str(len(parents))
                beside = sorted(file for file in whole.parent.iterdir() if file.is_file())
                files = {file.name: self._digest(file) for file in beside}
                places[parents[whole.parent]] = files
            return PurePosixPath(PLACES, parents[whole.parent], whole.name)

        content = encode((map_paths(args, token), map_paths(limits, token)))
        return RemoteCall(function.__module__, function.__qualname__, content, self.run, places)

    def local(self, path: PurePath) -> PurePath:
        """The local path of a token's file or folder; other paths stay as they are."""
        if len(path.parts) < 2 or path.parts[0] != FOLDERS or path.parts[1] not in self._folders:
            return path
        base = self._folders[path.parts[1]]
        whole = base.joinpath(*path.parts[2:])
        return whole if ".." not in path.parts else base

    def _folder(self, folder: Path) -> PurePosixPath:
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        self._folders[name] = folder
        return PurePosixPath(FOLDERS, name)

    def _digest(self, file: Path) -> str:
        status = file.stat()
        key = (str(file), status.st_size, status.st_mtime_ns, status.st_ino)
        if key not in self._digests:
            with file.open("rb") as content:
                self._digests[key] = hashlib.file_digest(content, "sha256").hexdigest()
        digest = self._digests[key]
        self.files[digest] = file
        return digest


def map_paths(value: Any, change: Callable[[PurePath], PurePath]) -> Any:
    """The same plain data with every path inside changed."""
    if isinstance(value, PurePath):
        return change(value)
    if isinstance(value, dict):
        return {key: map_paths(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(map_paths(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        changed = {name: map_paths(part, change) for name, part in parts.items()}
        return replace(value, **changed)
    return value

"""Multipart forms straight to disk: files are hashed while they arrive and never kept in memory.

Files stay in the spool, and go with the request unless somebody stores them: what is refused leaves nothing.
Text fields are small and bounded; unknown fields, a field twice, and a missing file are errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from collage.service.http.problems import ProblemError
from collage.service.storage.blobs import BlobFiles, BlobWriter

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_FIELD_BYTES = 1 << 20
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class UploadedFile:
    """A file of a form, in the spool until the request has ended."""

    writer: BlobWriter
    name: str

    @property
    def sha256(self) -> str:
        """Of its bytes."""
        return self.writer.sha256


@dataclass(frozen=True)
class Form:
    """What a form had."""

    files: dict[str, UploadedFile]
    fields: dict[str, str]


def bad_form(detail: str) -> ProblemError:
    """The 422 for a form that cannot be used."""
    return ProblemError(422, "invalid-form", detail)


@dataclass
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    file_name: str | None = None
    writer: BlobWriter | None = None
    text: bytearray = field(default_factory=bytearray)


class _Reader:
    """Callbacks of the multipart parser; runs in worker threads, one call at a time."""

    def __init__(
        self,
        blobs: BlobFiles,
        stack: ExitStack,
        files: Collection[str],
        fields: Collection[str],
        limit: int,
    ) -> None:
        self.uploaded: dict[str, UploadedFile] = {}
        self.fields: dict[str, str] = {}
        self._blobs = blobs
        self._stack = stack
        self._allowed_files = files
        self._allowed_fields = fields
        self._limit = limit
        self._part = _Part()
        self._header = [bytearray(), bytearray()]
        self.ended = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open,
            "on_part_data": self._take,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _finish(self) -> None:
        self.ended = True

    def _begin(self) -> None:
        self._part = _Part()

    def _end_header(self) -> None:
        self._part.headers[bytes(self._header[0]).lower()] = bytes(self._header[1])
        self._header = [bytearray(), bytearray()]

    def _open(self) -> None:
        part = self._part
        _, options = parse_options_header(part.headers.get(b"content-disposition", b""))
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        if part.name in self.uploaded or part.name in self.fields:
            raise bad_form(f"field {part.name!r} is there twice")
        if part.name in self._allowed_files:
            if b"filename" not in options:
                raise bad_form(f"field {part.name!r} must be a file (curl: -F {part.name}=@FILE)")
            part.file_name = options[b"filename"].decode("utf-8", "replace")
            part.writer = self._stack.enter_context(self._blobs.writer(self._limit))
        elif part.name not in self._allowed_fields:
            known = ", ".join([*self._allowed_files, *self._allowed_fields])
            raise bad_form(f"unknown field {part.name!r}; known: {known}")

    def _take(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.writer is not None:
            part.writer.write(data[start:end])
            return
        part.text.extend(data[start:end])
        if len(part.text) > _FIELD_BYTES:
            raise bad_form(f"field {part.name!r} is longer than {_FIELD_BYTES} bytes")

    def _end(self) -> None:
        part = self._part
        if part.writer is not None:
            if not part.writer.size_bytes and not part.file_name:
                return  # a browser sends an empty, nameless file for a file field left empty
            self.uploaded[part.name] = UploadedFile(part.writer, part.file_name or "")
            return
        try:
            self.fields[part.name] = part.text.decode()
        except UnicodeDecodeError:
            raise bad_form(f"field {part.name!r} is not UTF-8") from None


async def receive(
    request: Request,
    blobs: BlobFiles,
    stack: ExitStack,
    *,
    files: Collection[str],
    fields: Collection[str],
    limit_bytes: int,
) -> Form:
    """Read a multipart request.

    Args:
        request: with a form.
        blobs: in whose spool the files wait.
        stack: its end removes them.
        files: names of the file fields; the first one is required.
        fields: names of the text fields.
        limit_bytes: for each file.

    Raises:
        ProblemError: the form is damaged, misses the file, or has something unknown in it.
        UploadTooLargeError: a file is too large.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise ProblemError(
            415, "unsupported-media-type", "send multipart/form-data (curl: -F model=@FILE)"
        )
    reader = _Reader(blobs, stack, files, fields, limit_bytes)
    parser = MultipartParser(options[b"boundary"], reader.callbacks())
    batch = bytearray()
    try:
        async for chunk in request.stream():
            batch.extend(chunk)
            if len(batch) >= _BATCH_BYTES:
                await asyncio.to_thread(parser.write, bytes(batch))
                batch.clear()
        await asyncio.to_thread(parser.write, bytes(batch))
    except FormParserError as error:
        raise bad_form(f"the multipart form is damaged: {error}") from None
    except ClientDisconnect:
        raise bad_form("the client went away before the form was complete") from None
    if not reader.ended:
        raise bad_form("the multipart form ends too early")
    required = next(iter(files))
    if required not in reader.uploaded:
        raise bad_form(f"file field {required!r} is missing (curl: -F {required}=@FILE)")
    return Form(reader.uploaded, reader.fields)

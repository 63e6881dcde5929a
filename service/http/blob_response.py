"""A stored file as an answer: whole or a range of it, or only that it has not changed (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fastapi import Request
from starlette.concurrency import iterate_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from collage.service.http import problems
from collage.service.http.head import is_head

# Longer numbers, and what is no range, are ignored, as the RFC allows.
_RANGE = re.compile(r"bytes\s*=\s*(?=\d|-\s*\d)(\d{0,18})\s*-\s*(\d{0,18})\s*\Z", re.I | re.A)


class BlobResponse(StreamingResponse):
    """Answers a GET by its headers `If-None-Match`, `Range` and `If-Range`; other methods get the whole.

    Args:
        read: the bytes from the first to before the second number, in pieces.
        size_bytes: of the whole.
        etag: a name of the content, without quotes.
        media_type: of the file.
        headers: more headers.
    """

    def __init__(
        self,
        read: Callable[[int, int], Iterator[bytes]],
        *,
        size_bytes: int,
        etag: str,
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        tag = f'"{etag}"'
        fixed = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
        super().__init__(iter(()), media_type=media_type, headers={**headers, **fixed})
        self._read = read
        self._size_bytes = size_bytes
        self._tag = tag

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin, end = 0, self._size_bytes
        asked = Headers(scope=scope) if scope["method"] == "GET" else Headers()
        if self._is_known(asked.get("if-none-match", "")):
            self.status_code, end = 304, 0
        elif asked.get("if-range", self._tag) == self._tag and (
            found := _range(asked.get("range", ""))
        ):
            span = self._span(*found)
            if span is None:
                await self._refuse(scope, receive, send)
                return
            begin, end = span
            self.status_code = 206
            self.headers["Content-Range"] = f"bytes {begin}-{end - 1}/{self._size_bytes}"
        if self.status_code != 304:
            self.headers["Content-Length"] = str(end - begin)
        if end > begin and not is_head(scope):
            self.body_iterator = iterate_in_threadpool(self._read(begin, end))
        await super().__call__(scope, receive, send)

    def _is_known(self, tags: str) -> bool:
        return any(tag.strip().removeprefix("W/") in (self._tag, "*") for tag in tags.split(","))

    def _span(self, first: str, last: str) -> tuple[int, int] | None:
        """The first byte and the one after the last; None where the file has none of them."""
        size = self._size_bytes
        if not first:
            count = min(int(last or "0"), size)
            return (size - count, size) if count else None
        begin, end = int(first), min(int(last) + 1, size) if last else size
        return (begin, end) if begin < end else None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the file has {self._size_bytes} bytes"
        headers = {"Content-Range": f"bytes */{self._size_bytes}"}
        refusal = problems.response(Request(scope), 416, "range-not-satisfiable", detail, headers)
        await refusal(scope, receive, send)


def _range(header: str) -> tuple[str, str] | None:
    """The first and the last byte of a range; None where the header says none that is valid."""
    found = _RANGE.match(header)
    if found is None or (found[1] and found[2] and int(found[2]) < int(found[1])):
        return None
    return found[1], found[2]

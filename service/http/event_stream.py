"""A response of server-sent events that ends when its client leaves or its token is revoked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from collage.partitioner.errors import CollageError
from collage.service.http.head import is_head

# How often `chunks` should give an empty chunk where it has nothing to say.
TICK_S = 2.0
_PING_S = 15.0
_PING = b": ping\n\n"

T = TypeVar("T")

_log = structlog.get_logger("collage.http")


class EventStreamResponse(Response):
    """Sends chunks of encoded events as they come.

    Args:
        chunks: one or more whole events each; an empty one at least every `TICK_S`.
        allowed: asked before each chunk; when it says no, the stream ends.
        place: held while the stream is open; it may refuse the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        allowed: Callable[[], Awaitable[bool]],
        place: AbstractContextManager[None],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._allowed = allowed
        self._place = place
        self._is_head = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._is_head = is_head(scope)
        with self._place:
            await unless_left(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        if self._is_head:
            await self._chunks.aclose()
            await send({"type": "http.response.body", "body": b""})
            return
        loop = asyncio.get_running_loop()
        ping_at = loop.time() + _PING_S
        try:
            async with contextlib.aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    if not await self._allowed():
                        break
                    now = loop.time()
                    said = chunk or (_PING if now >= ping_at else b"")
                    if said:
                        ping_at = now + _PING_S
                        await send({"type": "http.response.body", "body": said, "more_body": True})
        except CollageError as error:  # the client comes back and goes on where it was
            _log.warning("an event stream ends early", error=str(error))
        await send({"type": "http.response.body", "body": b""})


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None, and `work` is cancelled, where the client leaves before.

    The body must have been read.
    """
    worker = asyncio.create_task(work)
    listener = asyncio.create_task(_until_left(receive))
    try:
        await asyncio.wait({worker, listener}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = not worker.done()
        worker.cancel()
        listener.cancel()
        await asyncio.gather(worker, listener, return_exceptions=True)
    return None if left else worker.result()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

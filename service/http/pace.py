"""Requests whose body comes too slowly: they are ended, so that nobody can keep a place for ever."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collage.service.http import problems


@dataclass(frozen=True)
class Pace:
    """How fast a body must come.

    Args:
        bytes_per_s: the least, on average over each window of waiting.
        total_s: the most for a whole body.
        window_s: also the time that every body has at least.
    """

    bytes_per_s: int
    total_s: float
    window_s: float = 10.0


class BodyPace:
    """Answers 408 where a body comes too slowly; only the time of waiting for it counts."""

    def __init__(self, app: ASGIApp, pace: Pace) -> None:
        self.app = app
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body(receive, self._pace)

        async def send_on(message: Message) -> None:
            if body.problem is None:
                await send(message)

        try:
            await self.app(scope, body.receive, send_on)
        except ClientDisconnect:
            if body.problem is None:
                raise
        if body.problem is not None:
            # The rest of the body is not read, so the connection cannot go on.
            headers = {"Connection": "close"}
            answer = problems.response(Request(scope), 408, "too-slow", body.problem, headers)
            await answer(scope, receive, send)


class _Body:
    """Passes a body on and watches its speed."""

    def __init__(self, receive: Receive, pace: Pace) -> None:
        self.problem: str | None = None
        self._receive = receive
        self._pace = pace
        self._ends_at = time.monotonic() + pace.total_s
        self._is_whole = False
        self._window_bytes = 0
        self._waited_s = 0.0

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        waiting = asyncio.ensure_future(self._receive())
        try:
            while not waiting.done():
                begin = time.monotonic()
                left_s = min(self._pace.window_s - self._waited_s, self._ends_at - begin)
                await asyncio.wait({waiting}, timeout=max(0.0, left_s))
                self._waited_s += time.monotonic() - begin
                if not waiting.done():
                    self._judge()
        finally:
            waiting.cancel()
        message = waiting.result()
        self._window_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if not self._is_whole:
            self._judge()
        return message

    def _judge(self) -> None:
        pace = self._pace
        if time.monotonic() >= self._ends_at:
            self.problem = (
                f"the body took longer than {pace.total_s:g} s; send it over a faster connection"
            )
        elif self._waited_s >= pace.window_s:
            if self._window_bytes < pace.bytes_per_s * self._waited_s:
                self.problem = (
                    f"the body comes too slowly: {self._window_bytes} bytes in {self._waited_s:.0f} s, "
                    f"and {pace.bytes_per_s} bytes each second are the least; send it again"
                )
            self._window_bytes, self._waited_s = 0, 0.0
        if self.problem is not None:
            raise ClientDisconnect

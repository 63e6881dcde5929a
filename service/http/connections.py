"""Connections: one that sends no whole request in time is closed, and so is one where there are too many.

A server has so many descriptors, and each connection holds one. Who opens connections and sends nothing, or
half a request, holds them for seconds only.
"""

from __future__ import annotations

import resource
from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
_HEAD_BYTES = 64 << 10
_MOST_FILES = 65_536


def raise_file_limit() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class TimedConnection(HttpToolsProtocol):
    """A connection whose heads must come in time and be short; `pace` looks after bodies."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._timer: TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_body = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > _most_connections():
            self._other_idle().transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_body = self._is_in_body
        super().data_received(data)
        if self._is_idle():
            self._wait_for_head()
            # The end of a body that nobody reads is no head, however much comes at once.
            is_body = was_in_body or self._is_in_body
            self._head_bytes = 0 if is_body else self._head_bytes + len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.transport.abort()
        else:
            self._stop_waiting()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_body, self._head_bytes = True, 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_body = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The rest of a body that nobody reads is to end too.
        if self._is_idle() and self._is_in_body:
            self._wait_for_head()

    def _is_idle(self) -> bool:
        """It has no request that is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _other_idle(self) -> TimedConnection:
        """Another connection without a request; this one where all have one."""
        for each in self.connections:
            if isinstance(each, TimedConnection) and each is not self and each._may_go():
                return each
        return self

    def _may_go(self) -> bool:
        return self._is_idle() and not self.transport.is_closing()

    def _wait_for_head(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEAD_S, self._end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if self.transport.get_write_buffer_size():  # nobody reads it
            self.transport.abort()
        else:
            self.transport.close()


def _most_connections() -> int:
    """Half of what this process may open: the rest is for files, databases and children."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, (_MOST_FILES if soft == resource.RLIM_INFINITY else soft) // 2)

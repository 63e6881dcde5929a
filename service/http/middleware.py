"""Around every request: an id, one line in the log, counters, safe headers.

Plain ASGI, so that streams pass through unbuffered.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collage.service.http import problems
from collage.service.telemetry.metrics import Metrics
from collage.service.telemetry.tracing import Span, Tracing

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")

# Nothing from elsewhere, nothing inline: what a model's names contain can never run in a page.
# Pictures in data: are those inside the vendored Swagger style sheet.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": with it Chromium sends `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_log = structlog.get_logger("collage.http")


# How logs and metrics name an answer that nobody waited for.
_CLIENT_LEFT = 499


class RequestContext:
    """Gives a request its id (the caller's, if it is harmless), logs and counts it.

    No error leaves it: a crash is logged once and answered, and a client that leaves is no error.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing) -> None:
        self.app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else secrets.token_hex(8)
        scope["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 500
        started = left = False
        begin = time.perf_counter()

        async def receive_on() -> Message:
            nonlocal left
            message = await receive()
            left = left or message["type"] == "http.disconnect"
            return message

        async def send_on(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                started = True
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with self._tracing.request(scope["method"], Headers(scope=scope)) as span:
            try:
                await self.app(scope, receive_on, send_on)
            except Exception as error:
                if left or isinstance(error, ClientDisconnect):
                    status = _CLIENT_LEFT
                    if not isinstance(error, ClientDisconnect):
                        _log.info("failed after the client left", error=type(error).__name__)
                else:
                    answer = await problems.unexpected(Request(scope), error)
                    if not started:
                        await answer(scope, receive_on, send_on)
            finally:
                self._note(scope, span, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, span: Span, status: int, seconds: float) -> None:
        route = _route(scope)
        self._metrics.request(scope["method"], route, status, seconds)
        # Pollers and scrapers would drown the log.
        say = _log.debug if route in ("/healthz", "/readyz", "/metrics") else _log.info
        ms = round(seconds * 1e3, 1)
        say("request", method=scope["method"], path=scope["path"], status=status, ms=ms)
        span.rename(f"{scope['method']} {route}")
        span.set(
            {
                "http.request.method": scope["method"],
                "http.route": route,
                "http.response.status_code": status,
                "collage.request": scope["request_id"],
                "collage.job": scope.get("path_params", {}).get("job_id"),
            }
        )
        if status >= 500:
            span.fail(f"status {status}")


class SameOrigin:
    """Refuses requests that another web site makes a browser send.

    A server on loopback has no tokens, and a browser sends the page's cookie by itself. `Host` is
    checked against `hosts`, names without port (against DNS rebinding; empty: any), `Origin` of writing
    requests against `Host`. A proxy's policy may hide the origin; then `Sec-Fetch-Site`, which no page
    can forge, must say that the page is ours.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], refuse: Callable[[str], ASGIApp]) -> None:
        self.app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        app: Any = self._refuse(problem) if problem else self.app
        await app(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts and name not in self._hosts:
            return f"this server does not go by the name {name!r}; add it to COLLAGE_ALLOWED_HOSTS"
        origin = headers.get("origin")
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or origin is None:
            return None
        if origin == "null" and headers.get("sec-fetch-site") == "same-origin":
            return None
        if origin.split("://", 1)[-1].lower() != host:
            return f"a page of {origin!r} may not write here"
        return None


def _route(scope: Scope) -> str:
    # The template, not the path: metrics must not grow with every job id.
    route = scope.get("route")
    return getattr(route, "path", "") or "unmatched"

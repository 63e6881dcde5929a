"""The HTTP application: the Open Inference Protocol's paths for one model, and `/metrics`.

Source: Open Inference Protocol, “HTTP/REST”; the statistics extension is Triton's.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from collage.serving.batches import Rows
from collage.serving.engine import Engine, Port
from collage.serving.errors import RequestError, bad
from collage.serving.metrics import CONTENT_TYPE, Metrics
from collage.serving.request import read_request
from collage.serving.response import write_response
from collage.serving.scheduler import Scheduler

VERSION = "1"
_HEADER = "Inference-Header-Content-Length"
# Reading so much JSON, or copying so much binary data, takes about as long as the event loop may stand still.
_SMALL_JSON = 16 * 1024
_SMALL_DATA = 1 << 20
_SLOWEST_BODY_S = 60.0
_CLIENT_LEFT = 499
_ENDS = "the server ends; ask another one"

Made = TypeVar("Made")


@dataclass
class Serving:
    """What the application serves, and whether it still takes requests."""

    name: str
    engine: Engine
    scheduler: Scheduler
    metrics: Metrics
    rows: Rows | None
    max_request_bytes: int
    draining: bool = False
    open_requests: int = 0


def create_app(serving: Serving) -> ASGIApp:
    """The application of one model."""
    serving.metrics.watch_open(lambda: serving.open_requests)
    model = "/v2/models/{model}"
    routes = [
        Route("/v2", _server),
        Route("/v2/health/live", _live),
        Route("/v2/health/ready", _ready),
        Route("/metrics", _metrics),
    ]
    for base in (model, model + "/versions/{version}"):
        routes += [
            Route(base, _model),
            Route(base + "/ready", _model_ready),
            Route(base + "/stats", _statistics),
            Route(base + "/infer", _infer, methods=["POST"]),
        ]
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        RequestError: _refused,
        HTTPException: _http_error,
        Exception: _failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.serving = serving
    return _Counted(app, serving)


class _Counted:
    """Counts the inference requests that are open, and when each is answered."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self._app, self._serving = app, serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/infer"):
            await self._app(scope, receive, send)
            return
        status, start = 500, time.perf_counter()

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._serving.open_requests += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self._serving.open_requests -= 1
            self._serving.metrics.answered(status, time.perf_counter() - start)


def _of(request: Request) -> Serving:
    """What is served, of the name and version in the path."""
    serving: Serving = request.app.state.serving
    name, number = request.path_params.get("model"), request.path_params.get("version")
    if name not in (None, serving.name):
        raise RequestError(404, f"there is no model {name!r}; this server has {serving.name!r}")
    if number not in (None, VERSION):
        raise RequestError(404, f"model {serving.name!r} has no version {number!r}; it has {VERSION!r}")
    return serving


async def _server(request: Request) -> Response:
    return JSONResponse(
        {
            "name": "collage",
            "version": version("collage-tuner"),
            "extensions": ["binary_tensor_data", "statistics"],
        }
    )


async def _live(request: Request) -> Response:
    return JSONResponse({"live": True})


async def _ready(request: Request) -> Response:
    ready = not _of(request).draining
    return JSONResponse({"live": True, "ready": ready}, 200 if ready else 503)


async def _metrics(request: Request) -> Response:
    return Response(_of(request).metrics.text(), media_type=CONTENT_TYPE)


async def _model(request: Request) -> Response:
    serving = _of(request)
    return JSONResponse(
        {
            "name": serving.name,
            "versions": [VERSION],
            "platform": "collage",
            "inputs": _described(serving.engine.inputs, serving.rows),
            "outputs": _described(serving.engine.outputs, serving.rows),
        }
    )


def _described(ports: tuple[Port, ...], rows: Rows | None) -> list[dict[str, Any]]:
    found = []
    for port in ports:
        shape = [-1 if size is None else size for size in port.shape]
        if rows is not None:
            shape[0] = -1
        found.append({"name": port.name, "datatype": port.datatype, "shape": shape})
    return found


async def _model_ready(request: Request) -> Response:
    serving = _of(request)
    ready = not serving.draining
    return JSONResponse({"name": serving.name, "ready": ready}, 200 if ready else 503)


async def _statistics(request: Request) -> Response:
    return JSONResponse(_of(request).metrics.statistics(VERSION))


async def _infer(request: Request) -> Response:
    serving = _of(request)
    if serving.draining:
        raise RequestError(503, _ENDS, retry_after_s=1)
    serving.scheduler.check_room()  # before the body is read
    body = await _body(request, serving.max_request_bytes)
    json_length = _json_length(request)
    most_rows = serving.rows.fixed and serving.rows.most if serving.rows is not None else None

    def read() -> Any:
        return read_request(
            body,
            json_length,
            inputs=serving.engine.inputs,
            outputs=serving.engine.outputs,
            most_rows=most_rows,
        )

    size = len(body) if json_length is None else json_length
    wanted = await _aside(read, size > _SMALL_JSON or len(body) > _SMALL_DATA)
    names = [output.name for output in wanted.outputs]
    arrays = await _answer(request, serving.scheduler.submit(wanted.feed, names))
    in_json = sum(array.size for array, o in zip(arrays, wanted.outputs, strict=True) if not o.binary)

    def write() -> Any:
        return write_response(
            wanted,
            arrays,
            model=serving.name,
            version=VERSION,
            datatypes={port.name: port.datatype for port in serving.engine.outputs},
        )

    in_bytes = sum(array.nbytes for array in arrays)
    made = await _aside(write, in_json * 8 > _SMALL_JSON or in_bytes > _SMALL_DATA)
    if made.json_length is None:
        return Response(made.data, media_type="application/json")
    return Response(
        made.data,
        media_type="application/octet-stream",
        headers={_HEADER: str(made.json_length)},
    )


async def _aside(action: Callable[[], Made], is_long: bool) -> Made:
    """Do something that takes long off the event loop."""
    return await asyncio.to_thread(action) if is_long else action()


async def _answer(request: Request, done: Future[list[np.ndarray]]) -> list[np.ndarray]:
    """Wait for the answer; a client that leaves gives up its place in the queue."""
    answer = asyncio.wrap_future(done)
    left = asyncio.ensure_future(request.receive())  # after the body comes only the end
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise RequestError(_CLIENT_LEFT, "the client has left")
        return answer.result()
    finally:
        left.cancel()


def _json_length(request: Request) -> int | None:
    text = request.headers.get(_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise bad(f"{_HEADER} must be a number, not {text!r}")
    return int(text[:20])


async def _body(request: Request, most: int) -> bytes:
    """The body, unpacked where it is compressed; raises RequestError where it is too long or too slow."""
    too_long = RequestError(413, f"the request is longer than {most} bytes; see --max-request-mb")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > most:
        raise too_long
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_SLOWEST_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise RequestError(408, f"the body took longer than {_SLOWEST_BODY_S:.0f} s") from None
    except ClientDisconnect:
        raise RequestError(_CLIENT_LEFT, "the client has left") from None
    body = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(
            415, f"Content-Encoding {encoding!r} is not known; use gzip, deflate or none"
        )
    return await asyncio.to_thread(_unpacked, body, most, too_long)


def _unpacked(body: bytes, most: int, too_long: RequestError) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: the format says itself what it is
    try:
        plain = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise bad(f"the body cannot be unpacked: {error}") from None
    if len(plain) > most:
        raise too_long
    if not unpacker.eof:
        raise bad("the body cannot be unpacked: its end is missing")
    if unpacker.unused_data:
        raise bad("the body cannot be unpacked: more follows its end; pack it as one stream")
    return plain


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.status in (408, 413, 503):  # of the body may be more to come, or the server ends
        headers["Connection"] = "close"
    return _error(error.message, error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _error(message, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return _error("the server failed; its log says why", 500)


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    # In ASCII: what a client sent may hold half of a character, which no other encoding takes.
    content = json.dumps({"error": message})
    return Response(content, status, headers, media_type="application/json")

"""Errors as RFC 9457 problems: `application/problem+json` with `type`, `title`, `status`, `detail`.

`type` is `urn:collage:problem:<kind>` and stable. Extra fields carry facts.

Invariant: what a 5xx says comes from the table `_SERVER_FAULTS` here and never from an error, whose text
may name paths, addresses or SQL. `response` makes every problem, so none gets past it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from collage.cluster.connection import ClusterError
from collage.cost_db.errors import (
    DatabaseUnavailableError,
    IdempotencyConflictError,
    QuotaExceededError,
)
from collage.options import OptionsError
from collage.partitioner.errors import BadInputError, CollageError, ModelError, NoPlanError, TargetError
from collage.runner import NoWorkerError
from collage.service.http.html import frame_facts, render
from collage.service.storage.blobs import BlobMissingError, UploadTooLargeError
from collage.service.storage.turns import TooManyWaitingError

MEDIA_TYPE = "application/problem+json"

# RFC 9110's names, where Python's have changed between its versions.
_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}

# What the sender of a request is told where the server is at fault.
_SERVER_FAULTS = {
    "internal": "the server made a mistake; its log has the trace under the request id",
    "busy": "too many uploads or event streams at once; try again",
    "database-unavailable": "the database does not answer; try again",
    "scheduler-unreachable": "the scheduler of the workers does not answer; try again",
    "no-worker": "no worker has the targets; GET /v1/workers lists the workers",
    "no-space": "the server has no space left on its disk",
    "job-failed": "the job failed; it says why at the path in `job`",
}

_log = structlog.get_logger()


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(description="The field, such as `options.seed`.")
    message: str


class Problem(BaseModel):
    """The body of every error answer (RFC 9457)."""

    type: str = Field(examples=["urn:collage:problem:not-found"])
    title: str
    status: int
    detail: str
    request_id: str | None = None
    errors: list[Fault] | None = None


class ProblemError(CollageError):
    """An error with its HTTP status, raised by routes."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: dict[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.headers = headers or {}
        self.facts = facts


def not_found(what: str) -> ProblemError:
    """The 404 for something that does not exist, or is another owner's."""
    return ProblemError(404, "not-found", f"there is no {what} for this token")


def invalid(faults: Sequence[tuple[str, str]]) -> ProblemError:
    """The 422 for fields that cannot be used: for each its name, and what is wrong with it."""
    detail = "; ".join(f"{where}: {message}" for where, message in faults)
    errors = [{"where": where, "message": message} for where, message in faults]
    return ProblemError(422, "invalid-request", detail, errors=errors)


def faults_of(errors: Iterable[Any], *before: str) -> list[tuple[str, str]]:
    """The fields and messages of errors of pydantic; `before` stands before each field."""
    return [(".".join(map(str, (*before, *fault["loc"]))), fault["msg"]) for fault in errors]


# The first class that fits decides, so the special stand before the general.
_KINDS: tuple[tuple[type[CollageError], int, str], ...] = (
    (UploadTooLargeError, 413, "upload-too-large"),
    (BlobMissingError, 410, "blob-missing"),
    (QuotaExceededError, 429, "quota-exceeded"),
    (TooManyWaitingError, 429, "too-many-requests"),
    (IdempotencyConflictError, 422, "idempotency-conflict"),
    (TargetError, 422, "target"),
    (ModelError, 422, "model"),
    (NoPlanError, 422, "no-plan"),
    (BadInputError, 422, "bad-input"),
    (NoWorkerError, 503, "no-worker"),
    (ClusterError, 503, "scheduler-unreachable"),
    (DatabaseUnavailableError, 503, "database-unavailable"),
)


def kind_of(error: CollageError) -> tuple[int, str]:
    """HTTP status and problem kind of an error of ours."""
    for cls, status, kind in _KINDS:
        if isinstance(error, cls):
            return status, kind
    return 500, "internal"


def response(
    request: Request,
    status: int,
    kind: str,
    detail: str,
    headers: dict[str, str] | None = None,
    **facts: Any,
) -> Response:
    """A problem as a response: JSON, or a page for a browser that asked for one."""
    if status >= 500:
        detail = _SERVER_FAULTS.get(kind, _SERVER_FAULTS["internal"])
    if status >= 400 and _wants_page(request):
        return _error_page(request, status, detail, headers)
    body = {
        "type": f"urn:collage:problem:{kind}",
        "title": _TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "request_id": request.scope.get("request_id"),
        **facts,
    }
    return JSONResponse(body, status, headers=headers, media_type=MEDIA_TYPE)


def _wants_page(request: Request) -> bool:
    """True for what a person opens in a browser; programs and the API get JSON."""
    is_page = not request.url.path.startswith(("/v1/", "/static/", "/new/models/"))
    return is_page and request.method == "GET" and "text/html" in request.headers.get("accept", "")


def _error_page(request: Request, status: int, detail: str, headers: dict[str, str] | None) -> Response:
    html = render(
        "error.html",
        here="",
        **frame_facts(request, request.app.state.services.settings.needs_tokens),
        status=status,
        title=_TITLES.get(status) or HTTPStatus(status).phrase,
        detail=detail,
        request_id=request.scope.get("request_id"),
    )
    return HTMLResponse(html, status, headers=headers)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return response(request, error.status, error.kind, str(error), error.headers, **error.facts)


async def _collage(request: Request, error: Exception) -> Response:
    assert isinstance(error, CollageError)
    status, kind = kind_of(error)
    if status >= 500:
        _log.error("request failed", error=str(error), path=request.url.path)
    headers = {"Retry-After": "5"} if status in (429, 503) else None
    if isinstance(error, OptionsError):
        errors = [{"where": where, "message": message} for where, message in error.faults]
        return response(request, status, kind, str(error), headers, errors=errors)
    return response(request, status, kind, str(error), headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = _allowed(request) or headers.get("Allow", "")
    return response(request, error.status_code, kind, str(error.detail), headers)


def _allowed(request: Request) -> str:
    # Starlette names the methods of one route only, and each method of a path is a route of its own.
    path = getattr(request.scope.get("route"), "path", "")
    return ", ".join(sorted(method.upper() for method in request.app.openapi()["paths"].get(path, {})))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _problem(request, invalid(faults_of(error.errors())))


async def _system(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return await unexpected(request, error)
    _log.error("no space left", path=request.url.path, error=str(error))
    return response(request, 507, "no-space", str(error))


async def unexpected(request: Request, error: Exception) -> Response:
    """Log a crash, and answer nothing of it but the request's id."""
    _log.error("request crashed", path=request.url.path, exc_info=error)
    return response(request, 500, "internal", str(error))


def install(app: FastAPI) -> None:
    """Let every error of an app become a problem."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(CollageError, _collage)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(OSError, _system)

"""Shared by several resources: documented errors, cursors and limits, files as answers."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator

from collage.service.http.blob_response import BlobResponse
from collage.service.http.problems import MEDIA_TYPE, Problem
from collage.service.services import Services

Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before.")]
ModelSha256 = Annotated[
    str | None,
    Query(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of a model, as uploaded or normalized."),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items of the page.")]


def _is_iso(value: str) -> str:
    # pydantic would also take numbers, as seconds since 1970.
    if "T" not in value.upper():
        raise ValueError("write a time with zone, for example 2026-01-31T12:00:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise ValueError("the time is not between the years 1 and 9999 in UTC") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_is_iso), AfterValidator(_in_utc)]

_DESCRIPTIONS = {
    400: "The request cannot be read",
    401: "No valid token",
    403: "The token lacks the scope, or the request comes from another web site",
    404: "No such thing",
    405: "This path does not take this method",
    408: "The body comes too slowly",
    409: "Not possible in the job's state",
    410: "The file is not kept any more",
    413: "More bytes than allowed",
    415: "Not a media type that is taken here",
    416: "The file has none of the bytes asked for",
    422: "The request is understood but cannot be used; `detail` says why",
    429: "A quota is used up, or requests come too fast",
    503: "Not now; try again after `Retry-After` seconds",
    507: "The server has no space left on its disk",
}


FILE_STATUSES: dict[int | str, dict[str, Any]] = {
    206: {"description": "The bytes that `Range` asks for"},
    304: {"description": "It is still what `If-None-Match` names"},
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these statuses as RFC 9457 problems, and those any route may give."""
    every = sorted({400, 401, 403, 405, 408, 422, 429, 503, 507, *statuses})
    return {
        status: {
            "model": Problem,
            "description": _DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in every
    }


def json_response(model: BaseModel) -> Response:
    """A model as an answer; FastAPI would check it again in another thread, for what is polled most."""
    return Response(model.model_dump_json(by_alias=True), media_type="application/json")


def blob_response(
    services: Services,
    sha256: str,
    media_type: str,
    file_name: str,
    headers: dict[str, str] | None = None,
) -> BlobResponse:
    """A stored file as an answer, streamed."""
    return BlobResponse(
        partial(services.files.chunks, sha256),
        size_bytes=services.files.size_bytes(sha256),
        etag=sha256,
        media_type=media_type,
        headers={"Content-Disposition": f'attachment; filename="{file_name}"', **(headers or {})},
    )

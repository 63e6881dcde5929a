"""JSON bodies: their type, size and depth are checked before anything else looks at them."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from collage.cost_db.plain_text import JSON_BYTES, plain_json, read_json
from collage.partitioner.errors import BadInputError
from collage.service.http.problems import ProblemError, faults_of, invalid

JSON_TYPE = "application/json"
M = TypeVar("M", bound=BaseModel)


def has_type(request: Request, media_type: str) -> bool:
    """True when the request says that its body is of this type."""
    given = request.headers.get("content-type", "").split(";")[0]
    return given.strip().lower() == media_type


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads its body by `read_body`."""
    return {"requestBody": {"required": True, "content": {JSON_TYPE: {"schema": schema_of(model)}}}}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """A reference to a model among the schemas of the document; see `collage.service.openapi`."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


async def read_body(request: Request, model: type[M]) -> M:
    """The body as a model.

    Raises:
        ProblemError: it is of another type (415), too long (413), or not as the model says (422).
    """
    if not has_type(request, JSON_TYPE):
        raise ProblemError(415, "unsupported-media-type", f"send JSON (Content-Type: {JSON_TYPE})")
    body = bytearray()
    async for chunk in request.stream():
        body.extend(chunk)
        if len(body) > JSON_BYTES:
            raise ProblemError(413, "upload-too-large", f"the JSON is longer than {JSON_BYTES} bytes")
    try:
        # Written anew: a text with one key twice would say two things.
        return model.model_validate_json(
            plain_json("body", read_json("body", bytes(body)), JSON_BYTES * 6)
        )
    except BadInputError as error:
        raise invalid([("body", str(error))]) from None
    except ValidationError as error:
        raise invalid(faults_of(error.errors(include_url=False), "body")) from None

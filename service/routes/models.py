"""`/v1/models`: models uploaded once and tuned as often as wanted."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from collage.service.api_models import ModelView, PageView
from collage.service.http.problems import not_found
from collage.service.routes.authentication import Reader, Tuner
from collage.service.routes.common import Cursor, Limit, problems
from collage.service.routes.submission import keep_model, receive_form
from collage.service.services import InjectedServices

router = APIRouter(prefix="/v1/models", tags=["models"])

ModelId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", min_length=64, max_length=64)]


@router.post(
    "",
    operation_id="uploadModel",
    status_code=201,
    response_model=ModelView,
    responses=problems(413, 415),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["model"],
                        "properties": {"model": {"type": "string", "format": "binary"}},
                        "additionalProperties": False,
                    }
                }
            },
        }
    },
)
async def upload_model(
    request: Request, response: Response, services: InjectedServices, caller: Tuner
) -> ModelView:
    """Upload a model; its name is the SHA-256 of its bytes, so a second upload changes nothing."""
    async with receive_form(request, services, caller, ["model"], []) as form:
        sha256 = await asyncio.to_thread(keep_model, services, caller, form.files["model"])
    stored = await asyncio.to_thread(services.models.get, sha256, caller.owner)
    response.headers["Location"] = f"/v1/models/{sha256}"
    return ModelView.model_validate(stored)


@router.get("", operation_id="listModels", response_model=PageView[ModelView], responses=problems())
def list_models(
    services: InjectedServices, caller: Reader, cursor: Cursor = None, limit: Limit = 100
) -> PageView[ModelView]:
    """Uploaded models, newest first."""
    page = services.models.list(None, cursor, limit)
    return PageView(items=[ModelView.model_validate(model) for model in page.items], next=page.next)


@router.get("/{sha256}", operation_id="getModel", response_model=ModelView, responses=problems(404))
def get_model(services: InjectedServices, caller: Reader, sha256: ModelId) -> ModelView:
    """What is known of a model."""
    model = services.models.get(sha256)
    if model is None:
        raise not_found(f"model {sha256}")
    return ModelView.model_validate(model)


@router.delete("/{sha256}", operation_id="removeModel", status_code=204, responses=problems(404))
def remove_model(services: InjectedServices, caller: Tuner, sha256: ModelId) -> Response:
    """Forget the caller's upload; jobs that use the model keep it."""
    unregistered = services.models.remove(sha256, caller.owner)
    if unregistered is None:
        raise not_found(f"model {sha256}")
    services.retention.delete(unregistered)
    return Response(status_code=204)

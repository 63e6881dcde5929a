"""`/v1/atlas`: which target is fast at which operators, shapes and data types (docs/atlas.md)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from collage.atlas.atlas import read_atlas
from collage.service.atlas_models import AtlasView
from collage.service.routes.authentication import Reader
from collage.service.routes.common import json_response, problems
from collage.service.services import InjectedServices

router = APIRouter(prefix="/v1/atlas", tags=["costs"])


@router.get("", operation_id="getAtlas", response_model=AtlasView, responses=problems())
def get_atlas(
    services: InjectedServices,
    caller: Reader,
    search: Annotated[
        str,
        Query(max_length=500, description="Words that rows must have, such as `conv 3x3 openvino`."),
    ] = "",
    hardware: Annotated[
        str | None, Query(max_length=64, description="A fingerprint, or how it begins.")
    ] = None,
) -> Response:
    """The summary of the cost database: per class how each target compares with the fastest."""
    found = read_atlas(services.database, search, hardware, wait=False)
    return json_response(AtlasView.model_validate(found))

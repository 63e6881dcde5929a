"""`/v1/costs`: stored measurements: list, export, import, delete."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, fields
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from collage.cost_db.costs.queries import CostFilter
from collage.service.api_models import (
    CostStatsView,
    CostView,
    ForgottenView,
    ImportView,
    PageView,
    RefusedLine,
)
from collage.service.http.bodies import has_type
from collage.service.http.problems import ProblemError
from collage.service.routes.authentication import Admin, Reader
from collage.service.routes.common import (
    Cursor,
    Limit,
    ModelSha256,
    Moment,
    json_response,
    problems,
)
from collage.service.services import InjectedServices

router = APIRouter(prefix="/v1/costs", tags=["costs"])

NDJSON = "application/x-ndjson"
_IMPORT_BYTES = 64 << 20  # split larger files: lines are independent of each other

_NAMES = (*(field.name for field in fields(CostFilter)), "cursor", "limit", "everything")

Text = Annotated[str | None, Query(min_length=1, max_length=500)]


def _check_names(request: Request) -> None:
    """Refuse a filter that is misspelled or given twice: it would mean more costs than intended."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in _NAMES:
            raise ProblemError(
                422, "invalid-request", f"unknown filter {name!r}; known: {', '.join(_NAMES)}"
            )
        if name != "op_types" and names.count(name) > 1:
            raise ProblemError(422, "invalid-request", f"filter {name!r} is given more than once")


async def cost_filter(
    request: Request,
    target: Text = None,
    backend: Text = None,
    backend_version: Text = None,
    op_types: Annotated[
        list[str] | None, Query(max_length=20, description="Operators that must all be inside.")
    ] = None,
    host: Text = None,
    hardware: Text = None,
    model: ModelSha256 = None,
    since: Moment | None = None,
    until: Moment | None = None,
    outcome: Literal["measured", "infeasible"] | None = None,
) -> CostFilter:
    """The filter in a request's query."""
    _check_names(request)
    return CostFilter(
        target=target,
        backend=backend,
        backend_version=backend_version,
        op_types=tuple(op_types or ()),
        host=host,
        hardware=hardware,
        model=model,
        since=since,
        until=until,
        outcome=outcome,
    )


Filter = Annotated[CostFilter, Depends(cost_filter)]


@router.get("", operation_id="listCosts", response_model=PageView[CostView], responses=problems())
def list_costs(
    services: InjectedServices,
    caller: Reader,
    wanted: Filter,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Costs, newest first."""
    page = services.database.query(wanted, cursor, limit)
    items = [CostView.of(row) for row in page.items]
    return json_response(PageView[CostView](items=items, next=page.next))


@router.get("/stats", operation_id="getCostStats", response_model=CostStatsView, responses=problems())
def cost_stats(services: InjectedServices, caller: Reader) -> CostStatsView:
    """How many costs there are."""
    return CostStatsView.model_validate(asdict(services.database.stats()))


@router.get(
    "/export",
    operation_id="exportCosts",
    response_class=StreamingResponse,
    responses={200: {"content": {NDJSON: {}}}, **problems()},
)
def export_costs(services: InjectedServices, caller: Reader, wanted: Filter) -> StreamingResponse:
    """All wanted costs as JSON lines, raw samples included."""
    return StreamingResponse(services.database.export_lines(wanted), media_type=NDJSON)


@router.post(
    "/import",
    operation_id="importCosts",
    response_model=ImportView,
    responses=problems(413, 415),
    max_body_size=_IMPORT_BYTES,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {NDJSON: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def import_costs(request: Request, services: InjectedServices, caller: Admin) -> ImportView:
    """Bring in JSON lines as the export writes them; each is checked, and bad ones are refused."""
    if not has_type(request, NDJSON):
        raise ProblemError(
            415, "unsupported-media-type", f"send JSON lines (curl -H 'Content-Type: {NDJSON}')"
        )
    # Only at line feeds: texts inside may have other characters that end lines elsewhere.
    lines = (await request.body()).split(b"\n")
    done = await asyncio.to_thread(services.database.import_lines, lines)
    refused = [RefusedLine(line=number, reason=reason) for number, reason in done.refused]
    return ImportView(accepted=done.accepted, known=done.known, refused=refused)


@router.delete("", operation_id="forgetCosts", response_model=ForgottenView, responses=problems())
def forget_costs(
    services: InjectedServices, caller: Admin, wanted: Filter, everything: bool = False
) -> ForgottenView:
    """Delete the wanted costs; without any filter only with `everything=true`."""
    return ForgottenView(deleted=services.database.forget(wanted, everything=everything))

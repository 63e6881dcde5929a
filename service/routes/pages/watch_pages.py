"""The page of watched artifacts: their history as charts, and what changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from collage.service.routes.pages.frame import Visitor, page
from collage.service.routes.pages.job_pages import owner_names
from collage.service.services import InjectedServices
from collage.service.watch_views import run_view, watch_view

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_RUNS_SHOWN = 20


@router.get("/watches")
def watches_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> HTMLResponse:
    """Watched artifacts, newest first."""
    found = services.watches.list(cursor, 20)
    watches = [
        (
            watch_view(services, watch),
            [run_view(run) for run in services.watches.runs(watch.id, _RUNS_SHOWN)][::-1],
        )
        for watch in found.items
    ]
    return page(
        request,
        services,
        "watches.html",
        "/watches",
        watches=watches,
        following=found.next,
        now=datetime.now(UTC),
        every_s=services.settings.watch_every_s,
        environments=sorted(services.settings.environments),
        names=owner_names(services),
    )

"""`/v1/watches`: artifacts that this server measures again and again (docs/watch.md)."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from collage.cost_db.jobs.watches import Watch
from collage.service.api_models import (
    JobBody,
    JobView,
    PageView,
    WatchBody,
    WatchHistoryView,
    WatchView,
)
from collage.service.http.bodies import body_of, read_body
from collage.service.http.problems import ProblemError, invalid, not_found
from collage.service.jobs.webhooks import check_webhook
from collage.service.routes.authentication import Caller, Reader, Tuner
from collage.service.routes.common import Cursor, Limit, problems
from collage.service.routes.jobs import find_job
from collage.service.routes.submission import from_stored, submit
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view
from collage.service.watch_views import run_view, watch_view

router = APIRouter(prefix="/v1/watches", tags=["watches"])

WatchId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", min_length=32, max_length=32)]


@router.post(
    "",
    operation_id="createWatch",
    status_code=201,
    response_model=WatchView,
    responses=problems(404, 413, 415),
    openapi_extra=body_of(WatchBody),
)
async def create_watch(
    request: Request, response: Response, services: InjectedServices, caller: Tuner
) -> WatchView:
    """Watch the artifact of a tuning, or tune a model and watch what comes of it."""
    body = await read_body(request, WatchBody)
    watch = await asyncio.to_thread(_create, services, caller, body)
    response.headers["Location"] = f"/v1/watches/{watch.id}"
    return await asyncio.to_thread(watch_view, services, watch)


@router.get("", operation_id="listWatches", response_model=PageView[WatchView], responses=problems())
def list_watches(
    services: InjectedServices, caller: Reader, cursor: Cursor = None, limit: Limit = 100
) -> PageView[WatchView]:
    """Watches, newest first, each with its last measurement."""
    page = services.watches.list(cursor, limit)
    return PageView(items=[watch_view(services, watch) for watch in page.items], next=page.next)


@router.get("/{watch_id}", operation_id="getWatch", response_model=WatchView, responses=problems(404))
def get_watch(services: InjectedServices, caller: Reader, watch_id: WatchId) -> WatchView:
    """A watch as it is now."""
    return watch_view(services, _find(services, watch_id))


@router.get(
    "/{watch_id}/history",
    operation_id="getWatchHistory",
    response_model=WatchHistoryView,
    responses=problems(404),
)
def get_history(
    services: InjectedServices, caller: Reader, watch_id: WatchId, limit: Limit = 1000
) -> WatchHistoryView:
    """The newest measurements of a watch, one for each environment, the oldest of them first."""
    watch = _find(services, watch_id)
    return WatchHistoryView(runs=[run_view(run) for run in services.watches.runs(watch.id, limit)])


@router.post(
    "/{watch_id}/run",
    operation_id="runWatch",
    status_code=201,
    response_model=JobView,
    responses=problems(404),
)
def run_watch(services: InjectedServices, caller: Tuner, watch_id: WatchId) -> JobView:
    """Measure a watched artifact now: queue a job of kind `watch`."""
    watch = _own(services, caller, watch_id)
    job = services.runner.watching.run_now(watch)
    services.runner.wake()
    return job_view(services, job)


@router.delete("/{watch_id}", operation_id="removeWatch", status_code=204, responses=problems(404))
def remove_watch(services: InjectedServices, caller: Tuner, watch_id: WatchId) -> Response:
    """Watch an artifact no longer; its history goes too, its jobs stay."""
    services.watches.remove(_own(services, caller, watch_id).id)
    return Response(status_code=204)


def _create(services: Services, caller: Caller, body: WatchBody) -> Watch:
    if (body.job is None) is (body.model_sha256 is None):
        raise invalid([("body", "give either job or model_sha256")])
    webhook = check_webhook(services.settings, body.webhook)
    if body.job is not None:
        if body.targets or body.options:
            raise invalid([("body", "targets and options are those of the job; leave them out")])
        job = find_job(services, body.job)
        if job.kind != "tune":
            raise invalid([("body.job", "it is no tuning, so it makes no artifact")])
        if job.state in ("failed", "cancelled"):
            raise invalid([("body.job", f"it has no artifact: it {job.state}")])
    else:
        assert body.model_sha256 is not None
        asked = JobBody(model_sha256=body.model_sha256, targets=body.targets, options=body.options)
        job = submit(services, caller, from_stored(services, asked), None)
    return services.watches.add(body.name or job.name, caller.owner, job.id, webhook)


def _find(services: Services, watch_id: str) -> Watch:
    watch = services.watches.get(watch_id)
    if watch is None:
        raise not_found(f"watch {watch_id}")
    return watch


def _own(services: Services, caller: Caller, watch_id: str) -> Watch:
    watch = _find(services, watch_id)
    if watch.owner != caller.owner and not caller.may("admin"):
        raise ProblemError(
            403, "forbidden", "the watch is another token's; only an admin may change it"
        )
    return watch

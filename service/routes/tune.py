"""`POST /v1/tune`: one call, model in, artifact out. It is a job like any other, waited for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

from collage.cost_db.jobs.job import Job
from collage.service.api_models import JobView
from collage.service.http.event_stream import unless_left
from collage.service.http.problems import ProblemError
from collage.service.jobs.event_feed import ends_job
from collage.service.jobs.kinds import ONNX_TYPE
from collage.service.routes.authentication import Tuner
from collage.service.routes.common import problems
from collage.service.routes.jobs import (
    FORM_FIELDS,
    FORM_FILES,
    FORM_SCHEMA,
    IdempotencyKey,
    artifact_response,
    find_job,
)
from collage.service.routes.submission import from_form, receive_form, submit
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view

router = APIRouter(prefix="/v1/tune", tags=["jobs"])

# How a failed job's kind answers the one call that waited for it.
_STATUS = {
    "no-worker": 503,
    "model": 422,
    "target": 422,
    "bad-input": 422,
    "no-plan": 422,
    "time-limit": 422,
}


@router.post(
    "",
    operation_id="tune",
    response_class=StreamingResponse,
    responses={
        200: {"content": {ONNX_TYPE: {}}, "description": "The partitioned ONNX file"},
        202: {"model": JobView, "description": "Queued (`Prefer: respond-async`)"},
        **problems(409, 410, 413, 415),
    },
    openapi_extra={
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}
    },
)
async def tune(
    request: Request,
    services: InjectedServices,
    caller: Tuner,
    prefer: Annotated[str | None, Header(max_length=200)] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Tune a model and answer the artifact; `Location` is the job.

    With `Prefer: respond-async` the answer is the queued job (202). If the caller goes away while
    waiting, the job goes on; the same `Idempotency-Key` finds it again.
    """
    async with receive_form(request, services, caller, FORM_FILES, FORM_FIELDS) as form:
        wanted = await asyncio.to_thread(from_form, services, form)
        job = await asyncio.to_thread(submit, services, caller, wanted, idempotency_key)
    headers = {"Location": f"/v1/jobs/{job.id}"}
    if "respond-async" in (prefer or ""):
        headers["Preference-Applied"] = "respond-async"
        view = await asyncio.to_thread(job_view, services, job)
        return JSONResponse(view.model_dump(mode="json"), 202, headers)
    waited = await unless_left(request.receive, _wait(services, job))
    if waited is None:  # nobody is there for the answer
        raise ClientDisconnect
    job, kind = waited
    if job.state == "done":
        headers["Link"] = f'</v1/jobs/{job.id}/report>; rel="describedby"'
        return await asyncio.to_thread(artifact_response, services, job, headers)
    status = 409 if job.state == "cancelled" else _STATUS.get(kind, 500)
    kind = "job-failed" if status == 500 else kind
    raise ProblemError(status, kind, job.reason or job.state, headers, job=f"/v1/jobs/{job.id}")


async def _wait(services: Services, job: Job) -> tuple[Job, str]:
    """The job after its end, and the kind of its failure."""
    kind = "job-failed"
    async with contextlib.aclosing(services.feed.events(job.id, 0)) as events:
        async for event in events:
            if event.kind == "failure":
                kind = str(event.data["kind"])
            elif ends_job(event) and event.data["state"] == "cancelled":
                kind = "job-cancelled"
    return await asyncio.to_thread(find_job, services, job.id), kind

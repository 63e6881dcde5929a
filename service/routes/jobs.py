"""`/v1/jobs`: make, list, show, watch, and fetch the results; `job_changes` has the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from collage.cost_db.jobs.job import Job
from collage.cost_db.jobs.job_list import JobFilter
from collage.options import GivenPlan
from collage.service.api_models import (
    DiagnosisSummaryView,
    JobBody,
    JobKind,
    JobState,
    JobView,
    PageView,
    SummaryView,
    WatchSummaryView,
)
from collage.service.diagnosis_models import DiagnosisView, WatchReportView
from collage.service.graph_models import GraphView
from collage.service.http.bodies import has_type, read_body, schema_of
from collage.service.http.event_stream import TICK_S, EventStreamResponse
from collage.service.http.problems import ProblemError, not_found
from collage.service.jobs.kinds import ONNX_TYPE, ZIP_TYPE
from collage.service.jobs.runner import JSON_TYPE
from collage.service.report_models import (
    FailureEvent,
    ProgressEvent,
    ReportView,
    StateEvent,
)
from collage.service.routes.authentication import Reader, Tuner, sharer
from collage.service.routes.common import (
    FILE_STATUSES,
    Cursor,
    Limit,
    ModelSha256,
    Moment,
    blob_response,
    json_response,
    problems,
)
from collage.service.routes.submission import Submission, from_form, from_stored, receive_form, submit
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view, job_views

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", min_length=32, max_length=32)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]+$",
        description="A repeated request with the same key gives the first one's job.",
    ),
]

SVG_TYPE = "image/svg+xml"

FORM_FILES = ["model", "inputs"]
FORM_FIELDS = ["targets", "options", "labels", "note", "webhook"]
FORM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["model"],
    "properties": {
        "model": {
            "type": "string",
            "format": "binary",
            "description": "An ONNX file, or a zip of one with its external data.",
        },
        "targets": {
            "type": "string",
            "description": "A JSON list, or texts with commas between; left out: those of the plan.",
            "examples": ['["onnxruntime", "openvino -precision=bf16"]'],
        },
        "options": {
            "type": "string",
            "description": "A JSON object.",
            "examples": ['{"tolerance": 0.001}'],
        },
        "labels": {"type": "string", "description": "A JSON list, or texts with commas between."},
        "note": {"type": "string", "description": "A text for people."},
        "webhook": {"type": "string", "description": "Address that is told when the job ends."},
        "inputs": {"type": "string", "format": "binary", "description": "Sample inputs (.npz)."},
    },
    "additionalProperties": False,
}


_EVENT = {
    "type": "object",
    "properties": {
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    schema_of(model)
                    for model in (
                        ProgressEvent,
                        StateEvent,
                        SummaryView,
                        DiagnosisSummaryView,
                        WatchSummaryView,
                        FailureEvent,
                    )
                ]
            },
        },
        "event": {"type": "string"},
        "id": {"type": "string"},
    },
    "required": ["data"],
}


def _json_file(*models: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    schemas = [schema_of(model) for model in models]
    return {
        200: {
            "content": {JSON_TYPE: {"schema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0]}}
        },
        **FILE_STATUSES,
        **problems(404, 409, 410, 416),
    }


def find_job(services: Services, job_id: str) -> Job:
    """The job.

    Raises:
        ProblemError: 404.
    """
    job = services.jobs.get(job_id)
    if job is None:
        raise not_found(f"job {job_id}")
    return job


@router.post(
    "",
    operation_id="createJob",
    status_code=201,
    response_model=JobView,
    responses=problems(404, 410, 413, 415),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {"schema": FORM_SCHEMA},
                JSON_TYPE: {"schema": schema_of(JobBody)},
            },
        }
    },
)
async def create_job(
    request: Request,
    response: Response,
    services: InjectedServices,
    caller: Tuner,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queue a tuning job, for a model in the request or one uploaded before."""
    wanted: Submission
    if has_type(request, JSON_TYPE):
        body = await read_body(request, JobBody)
        wanted = await asyncio.to_thread(from_stored, services, body)
        job = await asyncio.to_thread(submit, services, caller, wanted, idempotency_key)
    else:
        async with receive_form(request, services, caller, FORM_FILES, FORM_FIELDS) as form:
            wanted = await asyncio.to_thread(from_form, services, form)
            job = await asyncio.to_thread(submit, services, caller, wanted, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return await asyncio.to_thread(job_view, services, job)


@router.get(
    "",
    operation_id="listJobs",
    response_model=PageView[JobView],
    responses=problems(),
)
def list_jobs(
    services: InjectedServices,
    caller: Reader,
    kind: JobKind | None = None,
    state: JobState | None = None,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    name: Annotated[str | None, Query(max_length=200, description="A part of it, in any case.")] = None,
    model: ModelSha256 = None,
    label: Annotated[
        list[str] | None, Query(max_length=20, description="Labels that a job must all have.")
    ] = None,
    since: Annotated[Moment | None, Query(description="Made then or later.")] = None,
    until: Annotated[Moment | None, Query(description="Made before.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Jobs, newest first."""
    wanted = JobFilter(owner, state, name, model, tuple(label or ()), since, until, kind)
    page = services.jobs.list(after=cursor, limit=limit, wanted=wanted)
    return json_response(PageView[JobView](items=job_views(services, page.items), next=page.next))


@router.get("/{job_id}", operation_id="getJob", response_model=JobView, responses=problems(404))
def get_job(services: InjectedServices, caller: Reader, job_id: JobId) -> Response:
    """A job as it is now."""
    return json_response(job_view(services, find_job(services, job_id)))


async def _watchable(services: InjectedServices, job_id: JobId) -> str:
    # A stream has answered 200 before its first event: what can be refused is refused before.
    return (await asyncio.to_thread(find_job, services, job_id)).id


@router.get(
    "/{job_id}/events",
    operation_id="watchJob",
    status_code=200,
    response_class=EventStreamResponse,
    responses={200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}}, **problems(404)},
)
async def watch_job(
    request: Request,
    services: InjectedServices,
    caller: Reader,
    job_id: Annotated[str, Depends(_watchable)],
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,9}$")] = None,
) -> EventStreamResponse:
    """A job's events from the first (or from after `Last-Event-ID`) to its end, as they happen.

    `event: progress` tells a step, `event: state` a change of state; the stream ends with the job, and
    soon after the token is revoked or expires.
    """

    async def counted() -> AsyncGenerator[bytes, None]:
        chunks = services.feed.chunks(job_id, int(last_event_id or 0), TICK_S)
        with services.metrics.event_streams.track_inprogress():
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    return EventStreamResponse(
        counted(),
        lambda: services.token_watch.allows(caller.owner),
        services.streams.taken_by(sharer(request, services, caller)),
    )


@router.get(
    "/{job_id}/artifact",
    operation_id="getArtifact",
    response_class=StreamingResponse,
    responses={
        200: {"content": {ONNX_TYPE: {}, ZIP_TYPE: {}}},
        **FILE_STATUSES,
        **problems(404, 409, 410, 416),
    },
)
def get_artifact(services: InjectedServices, caller: Reader, job_id: JobId) -> StreamingResponse:
    """The partitioned ONNX file, or the zip of a diagnosis."""
    return artifact_response(services, find_job(services, job_id))


@router.get(
    "/{job_id}/report",
    operation_id="getReport",
    response_class=StreamingResponse,
    responses=_json_file(ReportView, DiagnosisView, WatchReportView),
)
def get_report(services: InjectedServices, caller: Reader, job_id: JobId) -> StreamingResponse:
    """The report: what was measured and found."""
    job = find_job(services, job_id)
    return blob_response(services, _made(job, job.result.report), JSON_TYPE, f"report-{job.id}.json")


@router.get(
    "/{job_id}/plan",
    operation_id="getPlan",
    response_class=StreamingResponse,
    responses=_json_file(GivenPlan),
)
def get_plan(services: InjectedServices, caller: Reader, job_id: JobId) -> StreamingResponse:
    """The plan alone, as the option `plan` takes it."""
    job = find_job(services, job_id)
    return blob_response(services, _made(job, job.result.plan), JSON_TYPE, f"plan-{job.id}.json")


@router.get(
    "/{job_id}/picture",
    operation_id="getPicture",
    response_class=Response,
    responses={200: {"content": {SVG_TYPE: {}}}, **problems(404, 409, 410)},
)
def get_picture(services: InjectedServices, caller: Reader, job_id: JobId) -> Response:
    """How the error grows by depth in a diagnosis, as SVG; 404 where no whole region is wrong."""
    job = find_job(services, job_id)
    if job.kind != "diagnose":
        raise not_found(f"picture of job {job_id}, which is no diagnosis")
    report = orjson.loads(services.files.read(_made(job, job.result.report)))
    depth = report["faults"]["error_by_depth"]
    if depth is None or not depth.get("svg"):
        raise not_found(f"picture of job {job_id}: nothing of it is wrong as a whole")
    return Response(depth["svg"], media_type=SVG_TYPE)


@router.get(
    "/{job_id}/graph",
    operation_id="getGraph",
    response_class=JSONResponse,
    responses={
        200: {"content": {JSON_TYPE: {"schema": schema_of(GraphView)}}},
        **problems(404, 409, 410),
    },
)
async def get_graph(
    request: Request, services: InjectedServices, caller: Reader, job_id: JobId
) -> JSONResponse:
    """The partition graph as the page draws it: partitions, their operators, the tensors between."""
    job = await asyncio.to_thread(find_job, services, job_id)
    if job.kind != "tune":
        raise not_found(f"graph of job {job_id}, which is no tuning")
    artifact = _made(job, job.result.artifact)
    return JSONResponse(await services.graphs.get(sharer(request, services, caller), artifact))


def artifact_response(
    services: Services, job: Job, headers: dict[str, str] | None = None
) -> StreamingResponse:
    """A done job's artifact as an answer."""
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in job.name)
    is_onnx = job.kind == "tune"
    ending = "collage.onnx" if is_onnx else "diagnosis.zip"
    name = f"{stem.removesuffix('.onnx').removesuffix('.zip') or 'model'}.{ending}"
    media_type = ONNX_TYPE if is_onnx else ZIP_TYPE
    return blob_response(services, _made(job, job.result.artifact), media_type, name, headers)


def _made(job: Job, sha256: str | None) -> str:
    if job.state != "done" or sha256 is None:
        raise ProblemError(
            409, "job-not-done", f"the job is {job.state}", state=job.state, reason=job.reason
        )
    return sha256

"""`/v1/jobs/{job_id}`: describe, run again, cancel and remove a job."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from collage.cost_db.jobs.job import FINISHED, Job
from collage.service.api_models import DescribeBody, JobView, RerunBody
from collage.service.http.bodies import body_of, read_body
from collage.service.http.problems import ProblemError
from collage.service.routes.authentication import Caller, Tuner
from collage.service.routes.common import problems
from collage.service.routes.jobs import IdempotencyKey, JobId, find_job
from collage.service.routes.submission import from_job, submit
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def _own_job(services: Services, caller: Caller, job_id: str) -> Job:
    """The job, where the caller may change it.

    Raises:
        ProblemError: there is none (404), or it is another token's (403).
    """
    job = find_job(services, job_id)
    if job.owner != caller.owner and not caller.may("admin"):
        raise ProblemError(403, "forbidden", "the job is another token's; only an admin may change it")
    return job


@router.patch(
    "/{job_id}",
    operation_id="describeJob",
    response_model=JobView,
    responses=problems(404, 413, 415),
    openapi_extra=body_of(DescribeBody),
)
async def describe_job(
    request: Request, services: InjectedServices, caller: Tuner, job_id: JobId
) -> JobView:
    """Change a job's labels and note."""
    body = await read_body(request, DescribeBody)
    job = await asyncio.to_thread(_own_job, services, caller, job_id)
    changed = await asyncio.to_thread(
        services.jobs.describe, job.id, labels=body.labels, note=body.note
    )
    return await asyncio.to_thread(job_view, services, changed)


@router.post(
    "/{job_id}/rerun",
    operation_id="rerunJob",
    status_code=201,
    response_model=JobView,
    responses=problems(404, 410, 413, 415),
    openapi_extra=body_of(RerunBody),
)
async def rerun_job(
    request: Request,
    response: Response,
    services: InjectedServices,
    caller: Tuner,
    job_id: JobId,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queue a job like this one, with the same model and sample inputs and with changes."""
    body = await read_body(request, RerunBody)
    job = await asyncio.to_thread(find_job, services, job_id)
    wanted = await asyncio.to_thread(from_job, services, job, body)
    made = await asyncio.to_thread(submit, services, caller, wanted, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{made.id}"
    return await asyncio.to_thread(job_view, services, made)


@router.post(
    "/{job_id}/cancel",
    operation_id="cancelJob",
    response_model=JobView,
    responses=problems(404),
)
def cancel_job(services: InjectedServices, caller: Tuner, job_id: JobId) -> JobView:
    """Cancel a job: a waiting one at once, a running one within two seconds; an ended one stays."""
    job = _own_job(services, caller, job_id)
    return job_view(services, services.jobs.request_cancel(job.id))


@router.delete(
    "/{job_id}",
    operation_id="removeJob",
    response_model=JobView,
    responses={204: {"description": "The job had ended and is removed"}, **problems(404)},
)
def remove_job(services: InjectedServices, caller: Tuner, job_id: JobId) -> Response:
    """Cancel a job that has not ended (200); remove one that has, with the files that are its own (204).

    `POST /v1/jobs/{job_id}/cancel` cancels and never removes.
    """
    job = _own_job(services, caller, job_id)
    if job.state in FINISHED:
        services.retention.remove(job.id)
        return Response(status_code=204)
    view = job_view(services, services.jobs.request_cancel(job.id))
    return JSONResponse(view.model_dump(mode="json"))

"""`/v1/diagnoses`: which nodes of a model are wrong or slow on a target. It makes a job like any other."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from collage.cost_db.jobs.job import Job
from collage.diagnosis.options import COMMON
from collage.service.api_models import DiagnosisBody, JobView
from collage.service.http.bodies import JSON_TYPE, has_type, read_body, schema_of
from collage.service.http.problems import invalid, not_found
from collage.service.http.uploads import Form
from collage.service.jobs.webhooks import check_webhook
from collage.service.routes.authentication import Tuner
from collage.service.routes.common import problems
from collage.service.routes.jobs import FORM_SCHEMA, IdempotencyKey, find_job
from collage.service.routes.submission import (
    Submission,
    chosen_for_diagnosis,
    in_form,
    options_of,
    receive_form,
    stored_in,
    submit,
)
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view
from collage.shapes.dim_text import parse_dim

router = APIRouter(prefix="/v1/diagnoses", tags=["jobs"])

_FILES, _FIELDS = ["model", "inputs"], ["target", "options", "labels", "note", "webhook"]
_FORM_SCHEMA: dict[str, Any] = {
    **FORM_SCHEMA,
    "required": ["model", "target"],
    "properties": {
        **{name: FORM_SCHEMA["properties"][name] for name in (*_FILES, *_FIELDS[1:])},
        "target": {"type": "string", "description": "The target to look at.", "examples": ["mnn"]},
    },
}


@router.post(
    "",
    operation_id="createDiagnosis",
    status_code=201,
    response_model=JobView,
    responses=problems(404, 410, 413, 415),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {"schema": _FORM_SCHEMA},
                JSON_TYPE: {"schema": schema_of(DiagnosisBody)},
            },
        }
    },
)
async def create_diagnosis(
    request: Request,
    response: Response,
    services: InjectedServices,
    caller: Tuner,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queue a diagnosis: of a model in the request, of one uploaded before, or of another job's model.

    Its artifact is a zip with a reproducer for each fault.
    """
    if has_type(request, JSON_TYPE):
        body = await read_body(request, DiagnosisBody)
        wanted = await asyncio.to_thread(_from_body, services, body)
        job = await asyncio.to_thread(submit, services, caller, wanted, idempotency_key)
    else:
        async with receive_form(request, services, caller, _FILES, _FIELDS) as form:
            wanted = await asyncio.to_thread(_from_form, services, form)
            job = await asyncio.to_thread(submit, services, caller, wanted, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return await asyncio.to_thread(job_view, services, job)


def _from_form(services: Services, form: Form) -> Submission:
    """The submission in a form; nothing is stored yet."""
    options = options_of(form)
    target = chosen_for_diagnosis(services, [form.fields.get("target", "").strip()], options)
    return in_form(services, form, [target], options, "diagnose")


def _from_body(services: Services, body: DiagnosisBody) -> Submission:
    """The submission for a model that is stored, by itself or by another job."""
    if (body.job is None) is (body.model_sha256 is None):
        raise invalid([("body", "give either job or model_sha256")])
    job = None if body.job is None else find_job(services, body.job)
    if job is not None and job.kind == "watch":
        raise invalid([("body.job", "it measures an artifact; give the tuning that made it")])
    options = body.options if job is None else {**_common(job), **body.options}
    sha256 = body.model_sha256 if job is None else job.model_sha256
    assert sha256 is not None
    if job is None:
        model = services.models.get(sha256)
        if model is None:
            raise not_found(f"model {sha256}")
        name = model.name
    else:
        name = job.name or "model.onnx"
        for stored in (job.model_sha256, job.inputs_sha256):
            if stored is not None:
                services.files.size_bytes(stored)
    labels = body.labels if body.labels is not None else [] if job is None else job.labels
    return Submission(
        model_sha256=sha256,
        name=name,
        targets=[chosen_for_diagnosis(services, [body.target], options)],
        options=options,
        inputs_sha256=None if job is None else job.inputs_sha256,
        labels=tuple(labels),
        note=body.note,
        webhook=check_webhook(services.settings, body.webhook),
        kind="diagnose",
    )


def _common(job: Job) -> dict[str, Any]:
    """The options that a diagnosis shares with the job."""
    options = stored_in(job, "options", dict)
    common = {name: options[name] for name in COMMON if options.get(name) is not None}
    if "dims" in common:
        # A diagnosis looks at one size of each dimension: the heaviest of those that the job was tuned for.
        said = {name: parse_dim(name, text) for name, text in common["dims"].items()}
        common["dims"] = {
            name: max(zip(dim.weights, dim.sizes, strict=True))[1] for name, dim in said.items()
        }
    return common

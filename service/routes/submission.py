"""From a request to a queued job: everything that can be refused at once is refused here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from collage.cost_db.jobs.job import Job
from collage.options import TuneOptions, chosen_targets, plan_targets
from collage.partitioner.errors import BadInputError
from collage.partitioner.target import Target
from collage.service.cluster.target_catalog import refuse_files
from collage.service.http.problems import not_found
from collage.service.http.uploads import Form, UploadedFile, bad_form, receive
from collage.service.routes.authentication import Caller
from collage.service.services import Services

MODEL_TYPE = "application/octet-stream"
_NAME_CHARACTERS = 200

# Options that name code of the caller's machine.
LOCAL_OPTIONS = ("evaluate",)


@dataclass(frozen=True)
class Submission:
    """What is asked for; the files are stored."""

    model_sha256: str
    name: str
    targets: list[str]
    options: dict[str, Any]
    inputs_sha256: str | None = None


async def receive_form(
    request: Request, services: Services, caller: Caller, files: list[str], fields: list[str]
) -> Form:
    """Read an upload, unless too many run now."""
    # Without tokens all have one owner: then each address counts as a caller.
    address = request.client.host if request.client else ""
    with services.uploads.taken_by(caller.owner if services.settings.needs_tokens else address):
        limit = services.settings.max_upload_bytes
        return await receive(request, services.files, files=files, fields=fields, limit_bytes=limit)


def keep_model(services: Services, caller: Caller, upload: UploadedFile) -> str:
    """Register an uploaded model as the caller's.

    Raises:
        QuotaExceededError: the caller's models would be too large.
    """
    services.register.add(upload.blob.sha256, upload.blob.size_bytes, MODEL_TYPE)
    services.models.add(upload.blob.sha256, caller.owner, display_name(upload.name))
    return upload.blob.sha256


def from_form(services: Services, caller: Caller, form: Form) -> Submission:
    """The submission in a form with `model` and perhaps `targets`, `options` and `inputs`."""
    # Before the model is registered: a request that is refused leaves nothing behind.
    options = _options(form.fields.get("options", ""))
    given = _targets(form.fields.get("targets", ""))
    targets = services.catalog.check(chosen_targets(given, options.get("plan")))
    inputs = form.files.get("inputs")
    if inputs is not None:
        services.register.add(inputs.blob.sha256, inputs.blob.size_bytes, MODEL_TYPE)
    return Submission(
        model_sha256=keep_model(services, caller, form.files["model"]),
        name=display_name(form.files["model"].name),
        targets=targets,
        options=options,
        inputs_sha256=inputs.blob.sha256 if inputs is not None else None,
    )


def from_stored(
    services: Services, model_sha256: str, targets: list[str], options: dict[str, Any]
) -> Submission:
    """The submission for a model that was uploaded before."""
    model = services.models.get(model_sha256)
    if model is None:
        raise not_found(f"model {model_sha256}")
    checked = _checked(options)
    chosen = services.catalog.check(chosen_targets(targets, checked.get("plan")))
    return Submission(model_sha256, model.name, chosen, checked)


def submit(services: Services, caller: Caller, wanted: Submission, idempotency_key: str | None) -> Job:
    """Queue a job, or find the one that this key made before.

    Raises:
        QuotaExceededError: the caller has too many jobs.
        IdempotencyConflictError: the key came with another request.
    """
    spec = {"name": wanted.name, "targets": wanted.targets, "options": wanted.options}
    if wanted.inputs_sha256 is not None:
        spec["inputs_sha256"] = wanted.inputs_sha256
    job = services.jobs.create(spec, caller.owner, idempotency_key, model_sha256=wanted.model_sha256)
    services.runner.wake()
    return job


def display_name(name: str) -> str:
    """A file's name as people see it: its last part, without control characters."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(c for c in last if c.isprintable()).strip()
    return shown.encode("utf-8", "replace").decode()[:_NAME_CHARACTERS] or "model.onnx"


def _targets(text: str) -> list[str]:
    text = text.strip()
    if not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        targets = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_form(f"field 'targets' is no JSON list: {error}") from None
    if not all(isinstance(target, str) for target in targets):
        raise bad_form("field 'targets' must be a list of texts")
    return list(targets)


def _options(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        options = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad_form(f"field 'options' is no JSON object: {error}") from None
    if not isinstance(options, dict):
        raise bad_form("field 'options' must be a JSON object")
    return _checked(options)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(options, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad_form(f"the options cannot be kept as JSON: {error}") from None
    for name in LOCAL_OPTIONS:
        if name in options:
            raise BadInputError(f"option {name!r} names code of your own; it works locally only")
    checked = TuneOptions.from_json(options)
    # The job checks the rest of a plan.
    for target in plan_targets(checked.plan or {}):
        refuse_files(Target.parse(target))
    return options


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")

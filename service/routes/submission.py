"""From a request to a queued job: everything that can be refused at once is refused here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from fastapi import Request

from collage.cost_db.jobs.job import Job, JobRequest, Kind
from collage.cost_db.plain_text import read_json
from collage.cost_db.stored_models import RegisteredBlob
from collage.diagnosis.options import DiagnoseOptions
from collage.metrics.names import is_function
from collage.options import TuneOptions, chosen_targets, plan_targets
from collage.partitioner.errors import BadInputError, CollageError
from collage.partitioner.target import Target
from collage.service.api_models import JobBody, RerunBody
from collage.service.cluster.target_catalog import refuse_files
from collage.service.http.problems import ProblemError, invalid, not_found
from collage.service.http.uploads import Form, UploadedFile, bad_form, receive
from collage.service.jobs.webhooks import check_webhook
from collage.service.routes.authentication import Caller, sharer
from collage.service.services import Services

MODEL_TYPE = "application/octet-stream"
_NAME_CHARACTERS = 200

# Options that may name code of the caller's machine.
LOCAL_OPTIONS = ("evaluate",)

_log = structlog.get_logger("collage.http")


@dataclass(frozen=True)
class Submission:
    """What is asked for."""

    model_sha256: str
    name: str
    targets: list[str]
    options: dict[str, Any]
    inputs_sha256: str | None = None
    labels: tuple[str, ...] = ()
    note: str | None = None
    webhook: str | None = None
    rerun_of: str | None = None  # the job that this one repeats
    kind: Kind = "tune"
    uploads: tuple[UploadedFile, ...] = ()  # the model and perhaps the inputs, not stored yet


@asynccontextmanager
async def receive_form(
    request: Request, services: Services, caller: Caller, files: list[str], fields: list[str]
) -> AsyncIterator[Form]:
    """Read an upload, unless too many run now; its files are there until the block ends."""
    with services.uploads.taken_by(sharer(request, services, caller)), ExitStack() as stack:
        limit = services.settings.max_upload_bytes
        yield await receive(
            request, services.files, stack, files=files, fields=fields, limit_bytes=limit
        )


def keep_model(services: Services, caller: Caller, upload: UploadedFile) -> str:
    """Store an uploaded model as the caller's.

    Raises:
        QuotaExceededError: the caller's models would be too large; nothing is kept.
    """
    with _stored(services, [upload]):
        services.models.add(upload.sha256, caller.owner, display_name(upload.name))
    return upload.sha256


def from_form(services: Services, form: Form) -> Submission:
    """The submission in a form with `model` and perhaps the other fields; nothing is stored yet.

    Raises:
        BadInputError, ProblemError: a field cannot be used.
    """
    options = options_of(form)
    targets = _chosen(services, texts_of(form, "targets"), _checked(options))
    return in_form(services, form, targets, options, "tune")


def in_form(
    services: Services, form: Form, targets: list[str], options: dict[str, Any], kind: Kind
) -> Submission:
    """The submission in a form whose targets and options are known; nothing is stored yet.

    Raises:
        BadInputError, ProblemError: a field cannot be used.
    """
    model, inputs = form.files["model"], form.files.get("inputs")
    return Submission(
        model_sha256=model.sha256,
        name=display_name(model.name),
        targets=targets,
        options=options,
        inputs_sha256=inputs.sha256 if inputs is not None else None,
        labels=tuple(texts_of(form, "labels")),
        note=form.fields.get("note"),
        webhook=check_webhook(services.settings, form.fields.get("webhook", "").strip() or None),
        kind=kind,
        uploads=(model,) if inputs is None else (model, inputs),
    )


def from_stored(services: Services, body: JobBody) -> Submission:
    """The submission for a model that was uploaded before.

    Raises:
        BadInputError, ProblemError: a field cannot be used, or there is no such model.
    """
    model = services.models.get(body.model_sha256)
    if model is None:
        raise not_found(f"model {body.model_sha256}")
    return Submission(
        model_sha256=body.model_sha256,
        name=model.name,
        targets=_chosen(services, body.targets, _checked(body.options)),
        options=body.options,
        labels=tuple(body.labels),
        note=body.note,
        webhook=check_webhook(services.settings, body.webhook),
    )


def from_job(services: Services, job: Job, changes: RerunBody) -> Submission:
    """The submission that repeats a job with changes.

    Raises:
        BadInputError, ProblemError: a field cannot be used, or the job's files are not kept any more.
    """
    for sha256 in (job.model_sha256, job.inputs_sha256):
        if sha256 is not None:
            services.files.size_bytes(sha256)
    assert job.model_sha256 is not None
    if job.kind == "watch":
        raise BadInputError("a watch is run again with POST /v1/watches/{watch_id}/run")
    options = {**stored_in(job, "options", dict), **changes.options}
    options = {name: value for name, value in options.items() if value is not None}
    given = changes.targets
    if given is None:
        # A new plan names its own targets.
        given = [] if changes.options.get("plan") else stored_in(job, "targets", list)
    if job.kind == "diagnose":
        targets = [chosen_for_diagnosis(services, given, options)]
    else:
        targets = _chosen(services, given, _checked(options))
    return Submission(
        model_sha256=job.model_sha256,
        name=job.name or "model.onnx",
        targets=targets,
        options=options,
        inputs_sha256=job.inputs_sha256,
        labels=tuple(job.labels if changes.labels is None else changes.labels),
        note=changes.note,
        webhook=check_webhook(services.settings, changes.webhook),
        rerun_of=job.id,
        kind=job.kind,
    )


def submit(services: Services, caller: Caller, wanted: Submission, idempotency_key: str | None) -> Job:
    """Queue a job, or find the one that this key made before; a request that is refused leaves nothing.

    Raises:
        QuotaExceededError: the caller has too many jobs.
        IdempotencyConflictError: the key came with another request.
    """
    spec = {"name": wanted.name, "targets": wanted.targets, "options": _counted(wanted.options)}
    for name in ("inputs_sha256", "rerun_of"):
        if (value := getattr(wanted, name)) is not None:
            spec[name] = value
    request = JobRequest(
        model_sha256=wanted.model_sha256,
        inputs_sha256=wanted.inputs_sha256,
        name=wanted.name,
        labels=wanted.labels,
        note=wanted.note,
        webhook_url=wanted.webhook,
        kind=wanted.kind,
        posts_model=bool(wanted.uploads),
    )
    with _stored(services, wanted.uploads):
        job = services.jobs.create(spec, caller.owner, idempotency_key, request=request)
    services.runner.wake()
    return job


def _counted(options: dict[str, Any]) -> dict[str, Any]:
    """Options as they came, but for the requests of a log, which may be many."""
    if not options.get("shapes"):
        return options
    counted = TuneOptions.from_json({"shapes": options["shapes"]})
    return {**options, **counted.as_json()}


def display_name(name: str) -> str:
    """A file's name as people see it: its last part, without control characters."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(c for c in last if c.isprintable()).strip()
    return shown.encode("utf-8", "replace").decode()[:_NAME_CHARACTERS] or "model.onnx"


@contextmanager
def _stored(services: Services, uploads: Sequence[UploadedFile]) -> Iterator[None]:
    """Uploads as registered files, for a block that refers to them; where it fails, new ones go again."""
    added: list[RegisteredBlob] = []
    try:
        for upload in {each.sha256: each for each in uploads}.values():
            keep = partial(services.files.keep, upload.writer)
            added.append(services.retention.keep(keep, MODEL_TYPE))
        yield
    except BaseException:
        try:
            services.retention.take_back(added)
        except CollageError as error:  # what went wrong before counts; the files go in time
            _log.warning("files of a refused request stay for now", error=str(error))
        raise


def stored_in(job: Job, name: str, kind: type[Any]) -> Any:
    """A part of what was asked for.

    Raises:
        ProblemError: 422, it is damaged.
    """
    value = job.spec.get(name)
    if not isinstance(value, kind) or (kind is list and not all(isinstance(v, str) for v in value)):
        raise ProblemError(
            422,
            "bad-input",
            f"job {job.id} is damaged: its {name} cannot be read; post the model again",
        )
    return value


def texts_of(form: Form, name: str) -> list[str]:
    """A field that is a JSON list, or texts with commas between."""
    text = form.fields.get(name, "").strip()
    if not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        texts = read_json(f"field {name!r}", text)
    except BadInputError as error:
        raise bad_form(str(error)) from None
    if not all(isinstance(each, str) for each in texts):
        raise bad_form(f"field {name!r} must be a list of texts")
    return list(texts)


def options_of(form: Form) -> dict[str, Any]:
    """The field `options`, which is a JSON object.

    Raises:
        ProblemError: 422, it is none.
    """
    text = form.fields.get("options", "")
    if not text.strip():
        return {}
    try:
        options = read_json("field 'options'", text)
    except BadInputError as error:
        raise bad_form(str(error)) from None
    if not isinstance(options, dict):
        raise bad_form("field 'options' must be a JSON object")
    return options


def _checked(options: Mapping[str, Any]) -> TuneOptions:
    for name in LOCAL_OPTIONS:
        if is_function(options.get(name)):
            raise BadInputError(f"option {name!r} names code of your own; it works locally only")
    return TuneOptions.from_json(options)


def _chosen(services: Services, given: list[str], options: TuneOptions) -> list[str]:
    """The targets, canonical and checked, those of the plan to apply included."""
    plan = options.plan
    for target in plan_targets(plan):
        refuse_files(Target.parse(target))
    return services.catalog.check(chosen_targets(given, plan))


def chosen_for_diagnosis(services: Services, targets: Sequence[str], options: Mapping[str, Any]) -> str:
    """The one target of a diagnosis, canonical; it and the options are checked.

    Raises:
        BadInputError, ProblemError: something cannot be used here.
    """
    asked = DiagnoseOptions.from_json(options)
    if services.settings.scheduler is not None and asked.against_environment is not None:
        message = (
            "this server's workers measure on other machines, which have none of its environments: "
            "use collage diagnose --against-version on a machine that has both"
        )
        raise invalid([("options.against_environment", message)])
    known = services.settings.environments
    if asked.against_environment is not None and asked.against_environment not in known:
        names = ", ".join(sorted(known)) or "none"
        message = f"{asked.against_environment!r} is no environment of this server; those are: {names}"
        raise invalid([("options.against_environment", message)])
    if asked.against is not None and asked.against_environment is None:
        services.catalog.check([asked.against])
    elif asked.against is not None:
        refuse_files(Target.parse(asked.against))
    found = services.catalog.check(targets)
    if len(found) != 1:
        raise invalid([("target", f"a diagnosis looks at one target, and {len(found)} are given")])
    return found[0]

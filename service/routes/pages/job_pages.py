"""The pages of jobs: the list, one job, several side by side, and the form of a new one."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse

from collage.cost_db.jobs.browse import JOB_ORDERS, JobBrowser, JobOrder, JobSearch
from collage.cost_db.jobs.job import Job
from collage.report.shapes import class_texts, memory_text
from collage.service.http.problems import ProblemError, not_found
from collage.service.pages.answer import banner, plan_bars, settings_picture, suspects
from collage.service.pages.comparison import moved, option_rows, plan_rows
from collage.service.pages.diagnosis import depth_chart, diagnosis_banner, watch_banner
from collage.service.pages.option_fields import common_fields, rare_fields, task_fields
from collage.service.routes.authentication import Reader, sharer
from collage.service.routes.jobs import JobId, find_job
from collage.service.routes.pages.frame import Visitor, page
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view, job_views

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_STATES = ("queued", "running", "done", "failed", "cancelled")
_SUGGESTED = ("onnxruntime", "openvino", "mnn", "ncnn")
_FOR_TESTS = ("null", "simulated")
_PAGE = 50
_MOST_PAGES = 10_000
_MOST_COMPARED = 6
# The default of a job without a limit, which the bar of a live job needs.
_DEFAULT_LIMIT_S = 150


@router.get("/")
def jobs_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    state: str = "",
    text: Annotated[str, Query(max_length=200)] = "",
    sort: str = "",
    number: Annotated[int, Query(ge=1, le=_MOST_PAGES)] = 1,
) -> HTMLResponse:
    """The jobs: searched, sorted, in pages."""
    chosen = next((each for each in _STATES if each == state), None)
    order: JobOrder = next((each for each in JOB_ORDERS if each == sort), "newest")
    wanted = JobSearch(text=text.strip(), state=chosen)  # type: ignore[arg-type]
    browser = JobBrowser(services.database)
    counts = browser.count_by_state(wanted)
    found = browser.page(wanted, order, (number - 1) * _PAGE, _PAGE)
    total = sum(counts.values()) if chosen is None else counts.get(chosen, 0)
    query = {"text": text.strip(), "state": chosen, "sort": order if order != "newest" else ""}
    return page(
        request,
        services,
        "jobs.html",
        "/",
        jobs=job_views(services, found),
        counts=counts,
        state=chosen,
        states=_STATES,
        text=text.strip(),
        order=order,
        orders=JOB_ORDERS,
        number=number,
        pages=max(1, -(-total // _PAGE)),
        total=total,
        query={name: value for name, value in query.items() if value},
        refresh=f"/?{urlencode({**{n: v for n, v in query.items() if v}, 'number': number})}",
        names=owner_names(services),
        is_shared=services.settings.needs_tokens,
    )


@router.get("/new")
def new_job_page(request: Request, services: InjectedServices, visitor: Visitor) -> HTMLResponse:
    """The form of a new job."""
    targets = [
        {**entry, "suggested": entry["name"] in _SUGGESTED}
        for entry in services.catalog.targets()
        if entry["name"] not in _FOR_TESTS
    ]
    return page(
        request,
        services,
        "new.html",
        "/new",
        targets=targets,
        common=common_fields(),
        rare=rare_fields(),
        task=task_fields(),
    )


@router.get("/new/models/{sha256}", response_class=JSONResponse)
async def model_facts(
    request: Request,
    services: InjectedServices,
    caller: Reader,
    sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
) -> dict[str, Any]:
    """The inputs of an uploaded model, for the form."""
    if await asyncio.to_thread(services.models.get, sha256) is None:
        raise not_found(f"model {sha256}")
    return await services.graphs.facts(sharer(request, services, caller), sha256)


@router.get("/new/models/{sha256}/sizes", response_class=JSONResponse)
async def model_sizes(
    request: Request,
    services: InjectedServices,
    caller: Reader,
    sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
) -> dict[str, Any]:
    """Sizes of free dimensions that an uploaded model takes, for the form."""
    if await asyncio.to_thread(services.models.get, sha256) is None:
        raise not_found(f"model {sha256}")
    return await services.graphs.sizes(sharer(request, services, caller), sha256)


@router.get("/compare")
def compare_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    job: Annotated[list[JobId] | None, Query(max_length=_MOST_COMPARED)] = None,
) -> HTMLResponse:
    """Jobs side by side."""
    chosen = [find_job(services, job_id) for job_id in dict.fromkeys(job or [])]
    found = [each for each in chosen if each.kind == "tune"]
    reports = [_report(services, each) for each in found]
    views = [job_view(services, each) for each in found]
    options = [{"targets": view.targets, **(view.options or {})} for view in views]
    return page(
        request,
        services,
        "compare.html",
        "/",
        jobs=views,
        reports=reports,
        banners=[banner(report) if report else None for report in reports],
        options=option_rows(options),
        plans=plan_rows(reports),
        moved=moved(reports),
        is_same_model=len({each.model_sha256 for each in found}) < 2,
    )


@router.get("/jobs/{job_id}")
def job_page(
    request: Request, services: InjectedServices, visitor: Visitor, job_id: JobId
) -> HTMLResponse:
    """A job: the answer first, then how it was found; live while it runs."""
    job = find_job(services, job_id)
    report, view = _report(services, job), job_view(services, job)
    owner = owner_names(services).get(job.owner, job.owner)
    if job.kind == "diagnose":
        return page(
            request,
            services,
            "diagnosis.html",
            "/",
            job=view,
            report=report,
            banner=diagnosis_banner(report) if report else None,
            chart=depth_chart(report) if report else None,
            limit_s=None,
            owner=owner,
        )
    if job.kind == "watch":
        return page(
            request,
            services,
            "watch_job.html",
            "/watches",
            job=view,
            report=report,
            banner=watch_banner(report) if report else None,
            limit_s=None,
            owner=owner,
        )
    return page(
        request,
        services,
        "job.html",
        "/",
        job=view,
        report=report,
        banner=banner(report) if report else None,
        plans=plan_bars(report) if report else [],
        settings_picture=settings_picture(report) if report else None,
        class_texts=class_texts(report["shapes"]) if report and report.get("shapes") else [],
        memory_text=memory_text(report["shapes"]) if report and report.get("shapes") else "",
        limit_s=(view.options or {}).get("time_limit_s") or _DEFAULT_LIMIT_S,
        suspects=suspects(report, view.targets, job.state),
        owner=owner,
    )


def owner_names(services: Services) -> dict[str, str]:
    """The name of each token by its id, which is what jobs store."""
    return {token.id: token.name for token in services.tokens.list()}


def _report(services: Services, job: Job) -> dict[str, Any] | None:
    if job.result.report is None:
        return None
    report = json.loads(services.files.read(job.result.report))
    if not isinstance(report, dict):
        raise ProblemError(500, "internal", "the job's report is damaged")
    return report

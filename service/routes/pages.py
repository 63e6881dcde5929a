"""The pages: HTML by the server, over the same services as the API; a cookie is their only state."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from collage.cluster.connection import ClusterError
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.page import Page
from collage.partitioner.errors import BadInputError
from collage.service.http.html import render
from collage.service.http.problems import ProblemError
from collage.service.routes.authentication import COOKIE, Caller, identify
from collage.service.routes.jobs import JobId, find_job
from collage.service.services import InjectedServices, Services
from collage.service.views import job_view, job_views, measuring_views, runner_views

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_STATES = ("queued", "running", "done", "failed", "cancelled")
_SUGGESTED = ("onnxruntime", "openvino", "mnn", "ncnn")
_FOR_TESTS = ("null", "simulated")
_COOKIE_S = 30 * 24 * 3600
_PAGE = 50


def _visitor(request: Request, services: InjectedServices) -> Caller:
    try:
        caller = identify(request, services, None)
    except ProblemError as error:
        if error.status != 401:
            raise
        sign_in = f"/login?{urlencode({'then': request.url.path})}"
        if "hx-request" in request.headers:  # a part of a page: all of it must go
            raise ProblemError(401, "unauthorized", str(error), {"HX-Redirect": sign_in}) from None
        raise ProblemError(303, "sign-in", "sign in first", {"Location": sign_in}) from None
    if not caller.may("read"):
        raise ProblemError(403, "forbidden", "the token lacks the scope 'read'")
    return caller


Visitor = Annotated[Caller, Depends(_visitor)]


def _page(request: Request, services: Services, template: str, here: str, **facts: Any) -> HTMLResponse:
    signed_in = services.settings.needs_tokens and COOKIE in request.cookies
    shared = {"here": here, "version": version("collage-tuner"), "signed_in": signed_in}
    return HTMLResponse(render(template, **shared, **facts))


@router.get("/")
def jobs_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    state: str = "",
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> HTMLResponse:
    """The jobs, newest first."""
    wanted = next((each for each in _STATES if each == state), None)
    page = services.jobs.list(None, wanted, cursor, _PAGE)  # type: ignore[arg-type]
    views = Page(tuple(job_views(services, page.items)), page.next)
    query = urlencode({k: v for k, v in {"state": wanted, "cursor": cursor}.items() if v})
    return _page(
        request,
        services,
        "jobs.html",
        "/",
        page=views,
        state=wanted,
        states=_STATES,
        refresh=f"/?{query}",
    )


@router.get("/new")
def new_job_page(request: Request, services: InjectedServices, visitor: Visitor) -> HTMLResponse:
    """The upload form."""
    targets = [
        {**entry, "suggested": entry["name"] in _SUGGESTED}
        for entry in services.catalog.targets()
        if entry["name"] not in _FOR_TESTS
    ]
    return _page(request, services, "new.html", "/new", targets=targets)


@router.get("/jobs/{job_id}")
def job_page(
    request: Request, services: InjectedServices, visitor: Visitor, job_id: JobId
) -> HTMLResponse:
    """A job: live while it runs, with graph and comparison when it is done."""
    job = find_job(services, job_id)
    report = json.loads(services.files.read(job.result.report)) if job.result.report else None
    return _page(request, services, "job.html", "", job=job_view(services, job), report=report)


@router.get("/costs")
def costs_page(
    request: Request,
    services: InjectedServices,
    visitor: Visitor,
    target: str = "",
    backend: str = "",
    backend_version: str = "",
    op_types: str = "",
    host: str = "",
    model: str = "",
    since: str = "",
    until: str = "",
    outcome: str = "",
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> HTMLResponse:
    """The cost browser; an empty field filters nothing."""
    problem = None
    wanted = CostFilter()
    page: Page[Any] = Page((), None)
    try:
        wanted = CostFilter(
            target=target or None,
            backend=backend or None,
            backend_version=backend_version or None,
            op_types=tuple(op_types.replace(",", " ").split()),
            host=host or None,
            model=model or None,
            since=_utc(since),
            until=_utc(until),
        )
        if outcome in ("measured", "infeasible"):
            wanted = replace(wanted, outcome=outcome)  # type: ignore[arg-type]
        page = services.database.query(wanted, cursor, _PAGE)
    except BadInputError as error:
        problem = str(error)
    return _page(request, services, "costs.html", "/costs", filters=wanted, page=page, problem=problem)


def _utc(minute: str) -> datetime | None:
    """What a field of type `datetime-local` says, taken as UTC.

    Raises:
        BadInputError: it is no time.
    """
    try:
        return datetime.fromisoformat(minute).replace(tzinfo=UTC) if minute else None
    except ValueError:
        raise BadInputError(f"{minute!r} is no time; write it like 2026-01-31T12:00") from None


@router.get("/workers")
def workers_page(request: Request, services: InjectedServices, visitor: Visitor) -> HTMLResponse:
    """Which machines run jobs, which measure, and which targets there are."""
    problem = None
    workers = runner_views(services)
    try:
        workers = [*measuring_views(services), *workers]
    except ClusterError as error:
        problem = str(error)
    return _page(
        request,
        services,
        "workers.html",
        "/workers",
        workers=workers,
        problem=problem,
        targets=services.catalog.targets(),
    )


@router.get("/docs")
def docs_page(request: Request, services: InjectedServices) -> HTMLResponse:
    """The API's reference in a browser."""
    return _page(request, services, "docs.html", "/docs")


@router.get("/login")
def login_page(request: Request, services: InjectedServices, then: str = "/") -> HTMLResponse:
    """Where a person gives the token."""
    return _page(request, services, "login.html", "", then=_local(then), problem=None)


@router.post("/login")
def login(
    request: Request,
    services: InjectedServices,
    token: Annotated[str, Form(max_length=500)],
    then: Annotated[str, Form(max_length=500)] = "/",
) -> Response:
    """Keep the token as a cookie, if it is good."""
    try:
        identify(request, services, token)
    except ProblemError as error:
        page = _page(request, services, "login.html", "", then=_local(then), problem=str(error))
        page.status_code = error.status
        return page
    answer = RedirectResponse(_local(then), 303)
    answer.set_cookie(
        COOKIE,
        token,
        max_age=_COOKIE_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
def logout() -> Response:
    """Forget the cookie."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


def _local(path: str) -> str:
    # "//host" and "/\host" would lead a browser to another site.
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"

"""The pages: HTML by the server, over the same services as the API; a cookie is their only state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.datastructures import URL

from collage.cluster.connection import ClusterError
from collage.service.http.html import COOKIE, frame_facts, render
from collage.service.http.problems import ProblemError
from collage.service.routes.authentication import Caller, identify
from collage.service.services import InjectedServices, Services
from collage.service.views import measuring_views, runner_views

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_ICON = Path(__file__).parents[2] / "static" / "icon.svg"
_COOKIE_S = 30 * 24 * 3600
_THEN_CHARACTERS = 2000
# Both fields as a form sends them: nine bytes for a character at most.
_LOGIN_BYTES = 9 * (_THEN_CHARACTERS + 500) + 100


def _visitor(request: Request, services: InjectedServices) -> Caller:
    try:
        caller = identify(request, services, None)
    except ProblemError as error:
        if error.status != 401:
            raise
        sign_in = f"/login?{urlencode({'then': _asked_for(request)})}"
        if "hx-request" in request.headers:  # a part of a page: all of it must go
            raise ProblemError(401, "unauthorized", str(error), {"HX-Redirect": sign_in}) from None
        raise ProblemError(303, "sign-in", "sign in first", {"Location": sign_in}) from None
    if not caller.may("read"):
        raise ProblemError(403, "forbidden", "the token lacks the scope 'read'")
    return caller


Visitor = Annotated[Caller, Depends(_visitor)]


def page(request: Request, services: Services, template: str, here: str, **facts: Any) -> HTMLResponse:
    """A page of this visitor."""
    shared = frame_facts(request, services.settings.needs_tokens)
    return HTMLResponse(render(template, here=here, **shared, **facts))


@router.get("/workers")
def workers_page(request: Request, services: InjectedServices, visitor: Visitor) -> HTMLResponse:
    """Which machines run jobs, which measure, and which targets there are."""
    problem = None
    workers = runner_views(services)
    try:
        workers = [*measuring_views(services), *workers]
    except ClusterError as error:
        problem = str(error)
    return page(
        request,
        services,
        "workers.html",
        "/workers",
        workers=workers,
        problem=problem,
        targets=services.catalog.targets(),
    )


@router.get("/favicon.ico")
def favicon() -> FileResponse:
    """The icon, where a browser asks without reading a page."""
    return FileResponse(_ICON, media_type="image/svg+xml")


@router.get("/docs")
def docs_page(request: Request, services: InjectedServices) -> HTMLResponse:
    """The API's reference in a browser."""
    return page(request, services, "docs.html", "/docs")


@router.get("/login")
def login_page(request: Request, services: InjectedServices, then: str = "/") -> HTMLResponse:
    """Where a person gives the token."""
    return page(request, services, "login.html", "", then=_local(then), problem=None)


@router.post("/login", max_body_size=_LOGIN_BYTES)
def login(
    request: Request,
    services: InjectedServices,
    token: Annotated[str, Form(max_length=500)],
    then: Annotated[str, Form(max_length=_THEN_CHARACTERS)] = "/",
) -> Response:
    """Keep the token as a cookie, if it is good."""
    try:
        identify(request, services, token)
    except ProblemError as error:
        again = page(request, services, "login.html", "", then=_local(then), problem=str(error))
        again.status_code = error.status
        return again
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


def _asked_for(request: Request) -> str:
    """The page that a visitor wants, with its query."""
    url = request.url
    if "hx-request" in request.headers:  # for a part of a page: the page itself
        url = URL(request.headers.get("hx-current-url", "/"))
    wanted = f"{url.path}?{url.query}" if url.query else url.path
    return wanted if len(wanted) <= _THEN_CHARACTERS else url.path[:_THEN_CHARACTERS]


def _local(path: str) -> str:
    # "//host" and "/\host" would lead a browser to another site.
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"

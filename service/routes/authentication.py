"""Bearer tokens with scopes.

Scopes: `read` sees everything that is tuned and measured here (a team shares it), `tune` uploads
models, makes jobs and cancels its own; `admin` cancels all jobs, imports and deletes costs. Each
includes the one before.

Without tokens (loopback only) every caller is the owner `local` with every scope. Browsers send the
token as a cookie that no script can read and that no other site can make them send.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from collage.cost_db.tokens import Token
from collage.service.http.html import COOKIE
from collage.service.http.problems import ProblemError
from collage.service.services import InjectedServices, Services

_INCLUDES = {
    "read": frozenset({"read"}),
    "tune": frozenset({"read", "tune"}),
    "admin": frozenset({"read", "tune", "admin"}),
}
_bearer = HTTPBearer(auto_error=False, description="A token made by `collage token create`.")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


@dataclass(frozen=True)
class Caller:
    """The sender of a request; `owner` owns what comes of it."""

    owner: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """True when the caller has the scope, or one that includes it."""
        return scope in self.scopes


LOCAL = Caller("local", frozenset({"read", "tune", "admin"}))


def identify(request: Request, services: Services, secret: str | None) -> Caller:
    """The caller with this secret.

    Raises:
        ProblemError: there is none, it is not valid (401), or its requests come too fast (429).
    """
    if not services.settings.needs_tokens:
        return LOCAL
    secret = secret or request.cookies.get(COOKIE)
    if not secret:
        raise _unauthorized("send Authorization: Bearer TOKEN (made by `collage token create`)")
    token = services.tokens.verify(secret)
    if token is None:
        raise _unauthorized("the token is unknown, revoked or expired")
    _check_rate(services, token)
    scopes = frozenset[str]().union(*(_INCLUDES[scope] for scope in token.scopes))
    return Caller(token.id, scopes)


def sharer(request: Request, services: Services, caller: Caller) -> str:
    """Whose share of the server a request uses up: a token's, or, where nobody needs one, an address's."""
    if services.settings.needs_tokens:
        return caller.owner
    return request.client.host if request.client else ""


def require(scope: str) -> Callable[..., Awaitable[Caller]]:
    """A dependency that gives the caller if it has the scope."""

    async def caller(request: Request, services: InjectedServices, credentials: _Credentials) -> Caller:
        found = LOCAL
        if services.settings.needs_tokens:  # a thread only where the database is asked
            secret = credentials.credentials if credentials else None
            found = await asyncio.to_thread(identify, request, services, secret)
        if not found.may(scope):
            raise ProblemError(403, "forbidden", f"the token lacks the scope {scope!r}")
        return found

    return caller


Reader = Annotated[Caller, Depends(require("read"))]
Tuner = Annotated[Caller, Depends(require("tune"))]
Admin = Annotated[Caller, Depends(require("admin"))]


def _unauthorized(detail: str) -> ProblemError:
    return ProblemError(401, "unauthorized", detail, {"WWW-Authenticate": 'Bearer realm="collage"'})


def _check_rate(services: Services, token: Token) -> None:
    per_minute = token.quotas.requests_per_minute
    if per_minute is None:
        return
    wait_s = services.rates.wait_s(token.id, per_minute)
    if wait_s:
        detail = f"more than {per_minute} requests a minute"
        raise ProblemError(429, "too-many-requests", detail, {"Retry-After": str(math.ceil(wait_s))})

"""HEAD for every path that takes GET: the same headers without the content."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

_FLAG = "collage.head"


class HeadAsGet:
    """Lets routes see GET; whoever sends the answer on leaves its content out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        inner = {**scope, "method": "GET", _FLAG: True}
        try:
            await self.app(inner, receive, send)
        finally:
            # For logs and metrics.
            scope.update({name: inner[name] for name in ("route", "path_params") if name in inner})


def is_head(scope: Scope) -> bool:
    """True where no content is wanted, so that a long answer need not make any."""
    return bool(scope.get(_FLAG))

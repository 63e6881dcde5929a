"""`/healthz`, `/readyz`, `/metrics`: for monitoring."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from fastapi.responses import Response

from collage.service.api_models import HealthView
from collage.service.http.problems import ProblemError
from collage.service.routes.authentication import Reader
from collage.service.routes.common import problems
from collage.service.services import InjectedServices
from collage.service.telemetry.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="getHealth", response_model=HealthView)
async def healthz() -> HealthView:
    """The process answers; nothing else is looked at, and no token is needed."""
    # Not in a thread: these may all be waiting for a database that is away.
    return HealthView(status="ok", version=version("collage-tuner"))


@router.get("/readyz", operation_id="getReadiness", response_model=HealthView, responses=problems())
def readyz(services: InjectedServices) -> HealthView:
    """The database answers too; no token is needed."""
    if not services.database.is_up():
        raise ProblemError(503, "database-unavailable", "the database does not answer")
    return HealthView(status="ok", version=version("collage-tuner"))


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **problems()},
)
def metrics(services: InjectedServices, caller: Reader) -> Response:
    """All numbers for Prometheus (scope `read`)."""
    return Response(services.metrics.text(), media_type=CONTENT_TYPE)

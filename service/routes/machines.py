"""`/v1/targets` and `/v1/workers`: what can run here, and which machines work."""

from __future__ import annotations

from fastapi import APIRouter

from collage.service.api_models import TargetView, WorkerView
from collage.service.routes.authentication import Reader
from collage.service.routes.common import problems
from collage.service.services import InjectedServices
from collage.service.views import worker_views

router = APIRouter(prefix="/v1", tags=["machines"])


@router.get(
    "/targets", operation_id="listTargets", response_model=list[TargetView], responses=problems()
)
def list_targets(services: InjectedServices, caller: Reader) -> list[TargetView]:
    """Every backend that this server knows, with its options, and why not where nothing has it."""
    return [TargetView(**entry) for entry in services.catalog.targets()]


@router.get(
    "/workers", operation_id="listWorkers", response_model=list[WorkerView], responses=problems()
)
def list_workers(services: InjectedServices, caller: Reader) -> list[WorkerView]:
    """Which machines run jobs and which measure, with their hardware."""
    return worker_views(services)

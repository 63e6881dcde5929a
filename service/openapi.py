"""The API's document: FastAPI's own, with the schemas of bodies and files that it does not see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from collage.diagnosis.options import DiagnoseOptions
from collage.options import GivenPlan, TuneOptions
from collage.service.api_models import (
    SCHEMA,
    DescribeBody,
    DiagnosisBody,
    DiagnosisSummaryView,
    JobBody,
    RerunBody,
    SummaryView,
    WatchBody,
    WatchSummaryView,
)
from collage.service.diagnosis_models import DiagnosisView, WatchReportView
from collage.service.graph_models import GraphView
from collage.service.report_models import (
    FailureEvent,
    ProgressEvent,
    ReportView,
    StateEvent,
)

_REQUESTS: tuple[type[BaseModel], ...] = (
    JobBody,
    DiagnosisBody,
    RerunBody,
    DescribeBody,
    WatchBody,
    TuneOptions,
    DiagnoseOptions,
)
_FILES: tuple[type[BaseModel], ...] = (ReportView, DiagnosisView, WatchReportView, GraphView, GivenPlan)
_EVENTS: tuple[type[BaseModel], ...] = (
    ProgressEvent,
    StateEvent,
    SummaryView,
    DiagnosisSummaryView,
    WatchSummaryView,
    FailureEvent,
)
_PLACE = "#/components/schemas/"


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an app."""
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
    )
    for models, mode in ((_FILES + _EVENTS, "serialization"), (_REQUESTS, "validation")):
        _, schemas = models_json_schema(
            [(model, mode) for model in models],  # type: ignore[misc]
            ref_template=_PLACE + "{model}",
        )
        made["components"]["schemas"] |= schemas["$defs"]
    made["components"]["schemas"] = dict(sorted(made["components"]["schemas"].items()))
    _fill(made)
    return made


def install(app: FastAPI) -> None:
    """Let an app serve this document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _fill(value: Any) -> None:
    """Put references to schemas where their placeholders stand."""
    if isinstance(value, dict):
        if SCHEMA in value:
            value["$ref"] = _PLACE + value.pop(SCHEMA)
        for item in value.values():
            _fill(item)
    elif isinstance(value, list):
        for item in value:
            _fill(item)

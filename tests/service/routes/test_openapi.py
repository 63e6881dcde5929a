"""The document of the API: typed everywhere, true for real answers, and changed on purpose only."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from collage.client import client
from collage.service.app import create_app
from collage.service.graph_models import GraphView
from collage.service.report_models import (
    FailureEvent,
    ProgressEvent,
    ReportView,
    StateEvent,
)
from collage.service.settings import Settings
from tests.service.conftest import StartServer, small_model

KEPT = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


def _document(tmp_path: Path) -> dict[str, Any]:
    app = create_app(Settings(data_dir=tmp_path))
    made: dict[str, Any] = app.openapi()
    made["info"]["version"] = "0"  # a release changes no call
    return made


@pytest.mark.slow
def test_a_change_of_the_api_is_a_decision(tmp_path: Path) -> None:
    """COLLAGE_KEEP_OPENAPI=1 writes the document anew; its diff is for reviewers."""
    text = json.dumps(_document(tmp_path), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("COLLAGE_KEEP_OPENAPI"):
        KEPT.write_text(text, encoding="utf-8")
    kept = KEPT.read_text(encoding="utf-8")
    diff = "".join(
        difflib.unified_diff(
            kept.splitlines(True), text.splitlines(True), "docs/openapi.json", "served"
        )
    )
    assert not diff, (
        f"the API has changed; keep it with COLLAGE_KEEP_OPENAPI=1 if that is meant:\n{diff}"
    )


@pytest.mark.slow
def test_every_schema_says_what_is_in_it(tmp_path: Path) -> None:
    document = _document(tmp_path)
    plain = [where for where, schema in _schemas(document) if _is_plain_object(schema)]
    assert plain == []


@pytest.mark.slow
def test_every_reference_leads_somewhere(tmp_path: Path) -> None:
    document = _document(tmp_path)
    known = document["components"]["schemas"]
    for where, schema in _schemas(document):
        if "$ref" in schema:
            assert schema["$ref"].rsplit("/", 1)[1] in known, where
    for schema in known.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.slow
def test_the_client_calls_what_the_document_has(tmp_path: Path) -> None:
    """Each path and method in the client's text is an operation, and each field that it reads is one."""
    document = _document(tmp_path)
    text = inspect.getsource(client)
    calls = {
        (method.lower(), re.sub(r"\{\w+\}", "{}", path))
        for method, path in [
            *re.findall(r'(?:_send|stream)\(\s*"([A-Z]+)", f?"(/v1[^"]+)"', text),
            *(("GET", path) for path in re.findall(r'_(?:get|pages)\(f?"(/v1[^"]+)"', text)),
            *(("POST", path) for path in re.findall(r'_post_form\(\s*f?"(/v1[^"]+)"', text)),
        ]
    }
    known = {
        (method, re.sub(r"\{\w+\}", "{}", path))
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert len(calls) >= 11 and calls <= known
    schemas = document["components"]["schemas"]
    read = set(re.findall(r'data\["(\w+)"\]', inspect.getsource(client.Client._job)))
    assert len(read) >= 4 and read <= set(schemas["JobView"]["properties"])
    sent = set(schemas["RerunBody"]["properties"])
    assert sent == set(inspect.signature(client.Client.rerun).parameters) - {"self", "job_id"}
    described = set(schemas["DescribeBody"]["properties"])
    assert described == set(inspect.signature(client.Client.describe).parameters) - {"self", "job_id"}


def _schemas(value: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield where, value
        for name, item in value.items():
            yield from _schemas(item, f"{where}/{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _schemas(item, f"{where}/{number}")


def _is_plain_object(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "object" and not (
        schema.get("properties") or isinstance(schema.get("additionalProperties"), dict)
    )


@pytest.mark.slow
def test_real_reports_graphs_and_events_are_as_described(start_server: StartServer) -> None:
    """A field that a report has and the document has not belongs into `report_models`."""
    server = start_server(runners=1)
    options = json.dumps({"pareto": True, "time_limit_s": 20, "tolerance": 0.1})
    done = server.http.post(
        "/v1/tune",
        files={"model": ("m.onnx", small_model())},
        data={"targets": "onnxruntime,openvino", "options": options},
        timeout=300,
    )
    assert done.status_code == 200, done.text
    url = done.headers["Location"]
    report = server.http.get(f"{url}/report").json()
    _check(ReportView, report)
    _check(GraphView, server.http.get(f"{url}/graph").json())
    events = server.http.get(f"{url}/events").text
    kinds = {"progress": ProgressEvent, "state": StateEvent, "failure": FailureEvent}
    seen = set()
    for block in events.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if fields.get("event") in kinds:
            seen.add(fields["event"])
            kinds[fields["event"]].model_validate_json(fields["data"])
    assert seen == {"progress", "state"}
    job = server.http.get(url).json()
    assert job["normalized_sha256"] == report["model_sha256"] != job["model_sha256"]
    for sha256 in (job["model_sha256"], job["normalized_sha256"]):
        costs = server.http.get("/v1/costs", params={"model": sha256}).json()["items"]
        assert costs and {cost["normalized_sha256"] for cost in costs} == {job["normalized_sha256"]}
        found = server.http.get("/v1/jobs", params={"model": sha256}).json()["items"]
        assert [each["id"] for each in found] == [job["id"]]


def _check(model: type[Any], data: Any) -> None:
    """The data fit, and every field of them is one of the model's."""
    read = model.model_validate_json(json.dumps(data))
    for where, value in _models(read):
        assert not value.model_extra, (
            f"{where} has {sorted(value.model_extra or {})}, which no model names"
        )


def _models(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _models(item, where)
    elif hasattr(value, "model_fields_set"):
        if hasattr(value, "model_extra"):
            yield f"{where} {type(value).__name__}", value
        for name in type(value).model_fields:
            yield from _models(getattr(value, name), f"{where}.{name}")

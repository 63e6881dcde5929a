"""OpenTelemetry: spans of requests, jobs and measurements; none, and nothing imported, unless asked for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from collage.service.telemetry.tracing import Tracing
from tests.service.conftest import StartServer, post_job, small_model


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


def _tracing(spans: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider)


def test_a_request_continues_the_callers_trace(
    start_server: StartServer, spans: InMemorySpanExporter
) -> None:
    server = start_server(tracing=_tracing(spans))
    trace = "0af7651916cd43dd8448eb211c80319c"
    header = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "X-Request-ID": "abc"}
    assert server.http.get(f"/v1/jobs/{'0' * 32}", headers=header).status_code == 404
    deadline = time.monotonic() + 5  # a span ends after its answer was sent
    while not (finished := spans.get_finished_spans()) and time.monotonic() < deadline:
        time.sleep(0.01)
    (span,) = finished
    assert span.name == "GET /v1/jobs/{job_id}"
    assert f"{span.context.trace_id:032x}" == trace
    assert span.parent is not None and f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    facts = dict(span.attributes or {})
    assert facts["http.response.status_code"] == 404
    assert facts["collage.request"] == "abc" and facts["collage.job"] == "0" * 32


@pytest.mark.slow
def test_a_job_has_a_span_with_its_measurements_inside(
    start_server: StartServer, spans: InMemorySpanExporter
) -> None:
    server = start_server(tracing=_tracing(spans), runners=1)
    options = '{"time_limit_s": 3}'
    job = post_job(server, small_model(), data={"options": options}).json()
    while server.http.get(job["links"]["self"]).json()["state"] not in ("done", "failed"):
        time.sleep(0.1)
    deadline = time.monotonic() + 5
    while not (of_job := [s for s in spans.get_finished_spans() if s.name == "job"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (whole,) = of_job
    assert dict(whole.attributes or {})["collage.job"] == job["id"]
    assert dict(whole.attributes or {})["collage.state"] == "done"
    inside = [
        s for s in spans.get_finished_spans() if s.parent and s.parent.span_id == whole.context.span_id
    ]
    assert inside and {s.name for s in inside} == {"measure"}
    for span in inside:
        assert span.start_time >= whole.start_time and span.end_time <= whole.end_time
        assert dict(span.attributes or {})["collage.target"].startswith("onnxruntime")


def test_the_standard_variables_switch_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tracing.from_environment()._provider is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tuner")
    asked = Tracing.from_environment()
    assert asked._provider.resource.attributes["service.name"] == "tuner"
    asked.close()
    for name, value in {"OTEL_TRACES_EXPORTER": "none", "OTEL_SDK_DISABLED": "true"}.items():
        with monkeypatch.context() as more:
            more.setenv(name, value)
            assert Tracing.from_environment()._provider is None


@pytest.mark.slow
def test_nothing_is_loaded_unless_asked_for() -> None:
    program = (
        "import sys; from collage.service.app import create_app; from collage.service.settings import Settings; "
        "create_app(Settings()); print([m for m in sys.modules if m.startswith('opentelemetry.sdk')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.strip() == "[]"

"""OpenTelemetry traces of requests, jobs and measurements, where the environment asks for them.

The standard's variables ask for them (`OTEL_EXPORTER_OTLP_ENDPOINT`), with the extra
`collage-tuner[otel]`. A request's span continues the caller's `traceparent`; a job's span is a trace of
its own, with a child for each measurement. `collage.job` ties the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import structlog

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_log = structlog.get_logger("collage.tracing")


class Span:
    """A span, or nothing: every method then does nothing."""

    def __init__(self, tracer: Any = None, span: Any = None) -> None:
        self._tracer = tracer
        self._span = span

    def rename(self, name: str) -> None:
        """Give it a better name, now that it is known."""
        if self._span is not None:
            self._span.update_name(name)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more; what is None is left out."""
        if self._span is not None:
            self._span.set_attributes({k: v for k, v in attributes.items() if v is not None})

    def fail(self, reason: str) -> None:
        """It did not go well."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, reason)

    def child(self, name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
        """Something inside it that has just ended, after so many seconds."""
        if self._span is None:
            return
        from opentelemetry.trace import set_span_in_context

        end_ns = time.time_ns()
        context = set_span_in_context(self._span)
        begin_ns = end_ns - int(seconds * 1e9)
        inner = self._tracer.start_span(name, context=context, start_time=begin_ns)
        Span(self._tracer, inner).set(attributes)
        inner.end(end_ns)


class Tracing:
    """Where spans go.

    `provider` is an OpenTelemetry `TracerProvider` that this owns from now on; None for no traces.
    """

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("collage", version("collage-tuner")) if provider else None

    @classmethod
    def from_environment(cls) -> Tracing:
        """Traces as the standard's variables ask; logs a warning where the extra is missing."""
        disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        unwanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
        if disabled or unwanted or not any(os.environ.get(name) for name in _ENDPOINTS):
            return cls()
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            _log.warning("no traces: pip install 'collage-tuner[otel]'", missing=str(error))
            return cls()
        name = os.environ.get("OTEL_SERVICE_NAME", "collage")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """The span of one request."""
        if self._tracer is None:
            yield Span()
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(dict(headers))
        span = self._tracer.start_span(method, context=context, kind=SpanKind.SERVER)
        with _ended(span):
            yield Span(self._tracer, span)

    @contextmanager
    def job(self, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """The span of one job, from its start to its end."""
        if self._tracer is None:
            yield Span()
            return
        span = self._tracer.start_span("job", attributes=dict(attributes))
        with _ended(span):
            yield Span(self._tracer, span)

    def close(self) -> None:
        """Send what was not sent yet."""
        if self._provider is not None:
            self._provider.shutdown()


@contextmanager
def _ended(span: Any) -> Iterator[None]:
    try:
        yield
    finally:
        span.end()

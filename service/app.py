"""The server, assembled from explicit lists: `create_app(settings)`, `serve(settings)`."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from collage.backends.sandbox.landlock import confinable
from collage.backends.sandbox.run import network_isolated, runs_as_root
from collage.cluster.connection import check_installed, security
from collage.partitioner.errors import BadInputError
from collage.service.http import problems
from collage.service.http.middleware import RequestContext, SameOrigin
from collage.service.jobs.cpu_affinity import keep_for_server
from collage.service.routes import (
    cost_pages,
    costs,
    health,
    job_pages,
    jobs,
    machines,
    models,
    pages,
    tune,
)
from collage.service.services import Services
from collage.service.settings import Settings
from collage.service.telemetry import logs
from collage.service.telemetry.metrics import Metrics
from collage.service.telemetry.tracing import Tracing

ROUTERS = (
    tune.router,
    jobs.router,
    models.router,
    costs.router,
    machines.router,
    health.router,
    pages.router,
    job_pages.router,
    cost_pages.router,
)

_STATIC = Path(__file__).parent / "static"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_DESCRIPTION = """
Which runtime should run which part of a model? Post an ONNX model and a list of targets; get back one
ONNX file that is partitioned for minimum latency, with the evidence.

Errors are RFC 9457 problems (`application/problem+json`); `type` is stable, `detail` says what to do.
"""

_log = structlog.get_logger("collage")


def create_app(
    settings: Settings,
    tracing: Tracing | None = None,
    job_cores: Sequence[int] = (),
    on_started: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The application; it opens its database and starts its runners when the server starts it.

    Args:
        tracing: where traces go; by default where the environment says.
        job_cores: the cores that jobs run on; by default those of this process.
        on_started: called before the first request.
    """
    metrics = Metrics()
    traces = tracing or Tracing.from_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services = Services.build(settings, metrics, traces)
        app.state.services = services
        metrics.watch_jobs(services.jobs.count)
        services.catalog.prepare()
        services.runner.start(job_cores)
        on_started()
        try:
            yield
        finally:
            services.close()
            traces.close()

    app = FastAPI(
        title="Collage",
        version=version("collage-tuner"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    # Scripts are three times as small so, which counts on slow lines.
    app.mount("/static", GZipMiddleware(StaticFiles(directory=_STATIC)), name="static")
    # The last one added is the outermost.
    app.add_middleware(SameOrigin, hosts=_hosts(settings), refuse=_refusal)
    app.add_middleware(RequestContext, metrics=metrics, tracing=traces)
    return app


def serve(settings: Settings) -> None:
    """Run the server until it is stopped.

    Raises:
        BadInputError: the settings would let strangers in, or contradict each other.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise BadInputError("COLLAGE_TLS_CERTIFICATE and COLLAGE_TLS_KEY need each other")
    if settings.scheduler is not None:
        check_installed()
        security(settings.scheduler, settings.scheduler_certificates)
    logs.configure(settings.log_level, settings.log_format)
    if not network_isolated():
        _log.warning("children that run models cannot be cut off the network on this platform")
    if runs_as_root():
        _log.warning("children that run models are root like this server: start it as another user")
    if not confinable():
        _log.warning("children that run models see all files of the server's user: no Landlock here")
    app = create_app(
        settings, job_cores=keep_for_server(settings.server_cores), on_started=_spare_collector
    )
    scheme = "https" if settings.tls_certificate else "http"
    tokens = "tokens needed" if settings.needs_tokens else "no tokens on loopback"
    print(f"collage serves on {scheme}://{settings.host}:{settings.port} ({tokens})", file=sys.stderr)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=5,
    )


def _spare_collector() -> None:
    """Let the garbage collector skip the server's permanent objects and run less often."""
    gc.collect()
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(10 * young, middle, old)


def _hosts(settings: Settings) -> tuple[str, ...]:
    if settings.allowed_hosts:
        return settings.allowed_hosts
    return (*_LOOPBACK_NAMES, settings.host) if settings.is_loopback else ()


def _refusal(detail: str) -> ASGIApp:
    async def refuse(scope, receive, send):  # type: ignore[no-untyped-def]
        response = problems.response(Request(scope), 403, "forbidden-origin", detail)
        await response(scope, receive, send)

    return refuse

"""The server, assembled from explicit lists: `create_app(settings)`, `serve(settings)`."""

from __future__ import annotations

import gc
import socket
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

from collage.backends.machine.process_policy import child_memory
from collage.backends.sandbox.run import protections
from collage.cluster.connection import check_installed, security
from collage.cost_db.database import CostDatabase
from collage.partitioner.errors import BadInputError
from collage.service import openapi
from collage.service.http import problems
from collage.service.http.connections import TimedConnection, raise_file_limit
from collage.service.http.head import HeadAsGet
from collage.service.http.middleware import RequestContext, SameOrigin
from collage.service.http.pace import BodyPace, Pace
from collage.service.jobs.cpu_affinity import keep_for_server
from collage.service.routes import (
    atlas,
    costs,
    diagnoses,
    health,
    job_changes,
    jobs,
    machines,
    models,
    tune,
    watches,
)
from collage.service.routes.pages import atlas_page, cost_pages, frame, job_pages, watch_pages
from collage.service.services import Services
from collage.service.settings import Settings
from collage.service.telemetry import logs
from collage.service.telemetry.metrics import Metrics
from collage.service.telemetry.tracing import Tracing

ROUTERS = (
    tune.router,
    jobs.router,
    job_changes.router,
    diagnoses.router,
    models.router,
    watches.router,
    costs.router,
    atlas.router,
    machines.router,
    health.router,
    frame.router,
    job_pages.router,
    cost_pages.router,
    watch_pages.router,
    atlas_page.router,
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
    if not structlog.is_configured():  # the default prints local variables
        logs.configure(settings.log_level, settings.log_format)
    metrics = Metrics()
    traces = tracing or Tracing.from_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services = Services.build(settings, metrics, traces)
        app.state.services = services
        metrics.watch_jobs(services.jobs.count)
        services.catalog.prepare()
        services.runner.start(job_cores)
        services.webhooks.start()
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
    openapi.install(app)
    # Scripts are three times as small so, which counts on slow lines.
    app.mount("/static", GZipMiddleware(StaticFiles(directory=_STATIC)), name="static")
    # The last one added is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyPace, pace=Pace(settings.min_upload_bytes_s, settings.upload_time_limit_s))
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
    _tell_protections()
    raise_file_limit()
    cores = keep_for_server(settings.server_cores)
    CostDatabase(settings.database_url).close()  # what is wrong with it is one line here
    listener = _listen(settings.host, settings.port)

    def started() -> None:
        _spare_collector()
        scheme = "https" if settings.tls_certificate else "http"
        tokens = "tokens needed" if settings.needs_tokens else "no tokens on loopback"
        address = f"{scheme}://{settings.host}:{listener.getsockname()[1]}"
        print(f"collage serves on {address} ({tokens})", file=sys.stderr)

    config = uvicorn.Config(
        create_app(settings, job_cores=cores, on_started=started),
        log_config=None,
        access_log=False,
        server_header=False,
        http=TimedConnection,
        ws="none",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=5,
    )
    try:
        config.load()
    except OSError as error:  # of the certificate and its key
        raise BadInputError(f"COLLAGE_TLS_CERTIFICATE and COLLAGE_TLS_KEY: {error}") from None
    server = uvicorn.Server(config)
    server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that nobody is told of a server that cannot be reached."""
    try:
        # With the protocol's number: asyncio sends small answers at once only on sockets that have it.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Now, for two servers may be bound to one address until one of them listens.
        listener.listen(2048)
    except OSError as error:
        raise BadInputError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose with COLLAGE_HOST and COLLAGE_PORT, or --host and --port"
        ) from None
    return listener


def _tell_protections() -> None:
    """Say which protections of children hold on this machine."""
    found = protections()
    memory = f"{child_memory() / (1 << 30):.3g} GiB of memory"
    _log.info("children that run models have", protections=f"{found.holding()}, {memory}")
    if (missing := found.missing()) is not None:
        _log.warning("children that run models lack (docs/security.md)", protections=missing)


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

"""The process that serves one model: it binds its port, loads, serves, and ends gracefully."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import uvicorn

from collage.backends.machine.process_policy import default_threads
from collage.partitioner.errors import BadInputError
from collage.serving.app import Serving, create_app
from collage.serving.batches import Rows, prove_rows
from collage.serving.engine import open_engine
from collage.serving.metrics import Metrics
from collage.serving.scheduler import Scheduler

# Orchestrators kill 30 s after they ask a process to end.
_DRAIN_S = 20.0
_CLOSE_S = 2


@dataclass(frozen=True)
class ServingOptions:
    """What `collage serve-model` is told; see its options."""

    host: str
    port: int
    instances: int | None
    threads: int | None
    max_batch_size: int | None
    max_delay_ms: float
    queue: int
    max_request_mb: int
    name: str | None
    fallback: bool


def serve_model(path: Path, options: ServingOptions) -> None:
    """Serve an artifact or a package until the process is told to end.

    Raises:
        BadInputError: the port is in use, or the model cannot be served here as it was planned.
    """
    # As a container's first process, which no signal ends by itself.
    signal.signal(signal.SIGTERM, _end_at_once)
    _name(path, options)  # a wrong one is told at once
    with _listen(options.host, options.port) as listener:
        serving = _opened(path, options)
        config = uvicorn.Config(
            create_app(serving),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_S,
        )
        server = _Server(config, serving)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _say(f"{serving.name} ({serving.engine.about}), {serving.engine.instances} at once")
        _say(f"serves on {address}/v2/models/{quote(serving.name)}")
        server.run(sockets=[listener])
    if server.force_exit or not serving.scheduler.close(_CLOSE_S):
        _say("ends with requests unanswered")
        os._exit(1)  # what a native library computes cannot be stopped
    serving.engine.close()


def _end_at_once(sig: int, frame: FrameType | None) -> None:
    _say(f"{signal.Signals(sig).name}: ends at once")
    os._exit(128 + sig)


def _opened(path: Path, options: ServingOptions) -> Serving:
    """The loaded model with its queue."""
    engine = open_engine(path, options.instances, threads=options.threads, fallback=options.fallback)
    rows = None
    most = options.max_batch_size or engine.rows
    if most > 1:
        rows = Rows.of(engine, most)
        prove_rows(engine, rows)
    cores = default_threads()
    if (needed := engine.instances * engine.threads) > cores:
        _say(f"{needed} threads share {cores} cores: give fewer instances, or fewer threads to each")
    name = _name(path, options)
    metrics = Metrics(name)
    scheduler = Scheduler(
        engine,
        metrics,
        rows=rows,
        max_delay_s=options.max_delay_ms / 1000,
        queue_length=options.queue,
    )
    return Serving(
        name=name,
        engine=engine,
        scheduler=scheduler,
        metrics=metrics,
        rows=rows,
        max_request_bytes=options.max_request_mb << 20,
    )


class _Server(uvicorn.Server):
    """On the first signal it takes no new requests and finishes those that run; on the second it ends at once."""

    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self._serving = serving
        self._drained_at = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._serving.draining:
            self.should_exit = self.force_exit = True
            return
        self._serving.draining = True
        self._drained_at = time.monotonic() + _DRAIN_S
        _say(
            f"{signal.Signals(sig).name}: no new requests; {self._serving.open_requests} are finished first"
        )

    async def on_tick(self, counter: int) -> bool:
        late = time.monotonic() > self._drained_at
        if self._serving.draining and (late or not self._serving.open_requests):
            self.should_exit = True
        return await super().on_tick(counter)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that a port in use is told before the model is loaded."""
    try:
        # With the protocol's number: asyncio sends small answers at once only on sockets that have it.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except (OSError, OverflowError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise BadInputError(
            f"cannot listen on {host}:{port}: {said}; choose another with --host and --port"
        ) from None
    return listener


def _name(path: Path, options: ServingOptions) -> str:
    name = path.resolve().name
    for end in (".onnx", ".collage"):
        name = name.removesuffix(end)
    name = options.name or name
    if not name or "/" in name:
        raise BadInputError(
            f"{name!r} cannot stand in the protocol's paths; give another --name, without /"
        )
    return name


def _say(text: str) -> None:
    print(f"collage: {text}", file=sys.stderr, flush=True)

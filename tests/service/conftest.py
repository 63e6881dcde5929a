"""A real server on a free loopback port, and small real models to send to it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import uvicorn
from onnx import helper, numpy_helper

from collage.service.app import create_app
from collage.service.http.connections import TimedConnection
from collage.service.services import Services
from collage.service.settings import Settings
from collage.service.telemetry import logs
from collage.service.telemetry.tracing import Tracing

# Loading the authorities that a machine trusts takes longer than a request, and no test here needs them.
_TRUST_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class _ServerLog(io.TextIOBase):
    """Keeps all lines in a file, and shows warnings and errors on stderr too."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, line: str) -> int:
        if not any(f'"level": "{level}"' in line for level in ("debug", "info")):
            sys.stderr.write(line)
        return self._file.write(line)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@pytest.fixture(scope="session", autouse=True)
def server_log(tmp_path_factory: pytest.TempPathFactory, no_secret_in_any_log: None) -> Iterator[Path]:
    """The file with all that servers in this process log; secrets are looked for in it at the end."""
    path = tmp_path_factory.mktemp("server") / "server.log"
    log = _ServerLog(path)
    logs.configure("debug", "json", log)
    yield path
    logs.configure("warning", "text")
    log.close()


class _PromptServer(uvicorn.Server):
    """Looks more often whether it is to end: there are many servers here, and each ends."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.01)


class RunningServer:
    """A server in this process, as `serve` runs it."""

    def __init__(self, settings: Settings, tracing: Tracing | None = None) -> None:
        self.settings = settings
        self.app = create_app(settings, tracing)
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=0,
            log_level="error",
            http=TimedConnection,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        self._server = _PromptServer(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < deadline and self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, verify=_TRUST_NOBODY)

    @property
    def services(self) -> Services:
        found = self.app.state.services
        assert isinstance(found, Services)
        return found

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(20)


StartServer = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    """The database behind the server: SQLite, unless a test is parametrized with `ENGINES`."""
    return str(getattr(request, "param", "sqlite"))


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.slow)
on_both_engines = pytest.mark.parametrize("engine", ["sqlite", POSTGRESQL], indirect=True)
ENGINES = [pytest.mark.usefixtures("engine"), on_both_engines]  # for a whole module


@contextlib.contextmanager
def _servers(folder: Path, engine: str, request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Starts servers over one data folder; without runners unless asked, so jobs wait."""
    if engine == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    else:
        url = f"sqlite:///{folder / 'costs.db'}"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), folder / "costs.db")
    with contextlib.ExitStack() as stack:

        def start(tracing: Tracing | None = None, **settings: Any) -> RunningServer:
            given = {
                "data_dir": folder / "data",
                "database_url": url,
                "runners": 0,
                "poll_s": 0.05,
                **settings,
            }
            server = RunningServer(Settings(**given), tracing)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def start_server(tmp_path: Path, engine: str, request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Starts servers over one data folder of this test."""
    with _servers(tmp_path, engine, request) as start:
        yield start


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    """A server whose jobs wait."""
    return start_server()


@pytest.fixture(scope="module")
def start_shared(
    tmp_path_factory: pytest.TempPathFactory, engine: str, request: pytest.FixtureRequest
) -> Iterator[StartServer]:
    """The same for all tests of a module that ask, where none minds what others leave."""
    with _servers(tmp_path_factory.mktemp("shared"), engine, request) as start:
        yield start


@pytest.fixture(scope="module")
def shared_server(start_shared: StartServer) -> RunningServer:
    """A server whose jobs wait, for all tests of a module that refuse or only read."""
    return start_shared()


def small_model(seed: int = 0, width: int = 8) -> bytes:
    """Conv → Relu → GlobalAveragePool → Flatten → Gemm → Softmax with seeded weights."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.2, name)

    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["a"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], name="pool"),
        helper.make_node("Flatten", ["c"], ["d"], name="flatten"),
        helper.make_node("Gemm", ["d", "v", "bias"], ["e"], name="gemm"),
        helper.make_node("Softmax", ["e"], ["y"], name="softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 5])],
        [weight("w", width, 3, 3, 3), weight("v", width, 5), weight("bias", 5)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def post_job(server: RunningServer, model: bytes = b"model", **more: Any) -> httpx.Response:
    """A job for a model, on onnxruntime unless said otherwise."""
    data = {"targets": "onnxruntime", **more.pop("data", {})}
    return server.http.post("/v1/jobs", files={"model": ("small.onnx", model)}, data=data, **more)

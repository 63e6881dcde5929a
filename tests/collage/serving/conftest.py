"""Small artifacts, and `collage serve-model` as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import onnx.parser
import pytest

from benchmarks.load_time import make_artifact
from collage.deploy.package import write_package
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

# Each row of y depends on its own row of x: y = tanh(x) * 3, z = the sum of x.
ROWS = """<ir_version: 8, opset_import: ["" : 20]>
    rows (float[{batch}, 4] x) => (float[{batch}, 4] y, float[{batch}, 1] z)
    <float three = {{3}}, int64[1] axis = {{1}}> {{ t = Tanh(x) y = Mul(t, three) z = ReduceSum(x, axis) }}"""
# Takes a while, so that requests are under way while something else happens.
_STEPS = " ".join(f"h{i} = MatMul(h{i - 1}, x)" for i in range(1, 16))
SLOW = f"""<ir_version: 8, opset_import: ["" : 20]>
    slow (float[1, 900, 900] x) => (float[1, 900, 900] y)
    {{ h0 = MatMul(x, x) {_STEPS} y = Tanh(h15) }}"""


def artifact_of(text: str, folder: Path, name: str) -> Path:
    """An artifact of a model in ONNX's text form, whole on ONNX Runtime."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), folder / "source.onnx")
    normalize(folder / "source.onnx", folder, {})
    model = Model.open(folder / "model.onnx")
    plan = Plan((Candidate(model.index.all_nodes, Target.parse("onnxruntime")),))
    return make_artifact(model, plan, folder / f"{name}.collage.onnx")


@dataclass
class Running:
    """A server process."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    url: str = ""
    model: str = ""

    def said(self, text: str, timeout_s: float = 60.0) -> bool:
        """Wait until the server says something."""
        deadline = time.monotonic() + timeout_s
        while not any(text in line for line in self.lines):
            if time.monotonic() > deadline or (self.process.poll() is not None and not self._reads()):
                return any(text in line for line in self.lines)
            time.sleep(0.02)
        return True

    def _reads(self) -> bool:
        return self.reader.is_alive()

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


Start = Callable[..., Running]


def start_server(path: Path, *options: str) -> Running:
    """Start `collage serve-model` on a free port and wait until it serves."""
    command = [sys.executable, "-m", "collage.serving", str(path), "--port", "0", *options]
    running = Running(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    if not running.said("serves on "):
        running.close()
        raise AssertionError("\n".join(running.lines))
    line = next(line for line in running.lines if "serves on " in line)
    url = line.partition("serves on ")[2]
    running.url, _, running.model = url.partition("/v2/models/")
    return running


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers that end with the test."""
    started: list[Running] = []

    def begin(path: Path, *options: str) -> Running:
        started.append(start_server(path, *options))
        return started[-1]

    yield begin
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def rows_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose batch is fixed at 1."""
    return artifact_of(ROWS.format(batch=1), tmp_path_factory.mktemp("rows"), "rows")


@pytest.fixture(scope="session")
def batch_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose batch is fixed at 8."""
    return artifact_of(ROWS.format(batch=8), tmp_path_factory.mktemp("batch"), "batch")


@pytest.fixture(scope="session")
def slow_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes a while."""
    return artifact_of(SLOW, tmp_path_factory.mktemp("slow"), "slow")


@pytest.fixture(scope="session")
def rows_package(rows_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of batch 1 as a package."""
    return write_package(rows_artifact, tmp_path_factory.mktemp("package") / "rows-package", 1).folder


@pytest.fixture(scope="session")
def rows_server(rows_artifact: Path) -> Iterator[Running]:
    """A server of the model of batch 1, for tests that only ask it."""
    server = start_server(rows_artifact)
    yield server
    server.close()


@pytest.fixture
def http(rows_server: Running) -> Iterator[httpx.Client]:
    """A plain HTTP client of that server."""
    with httpx.Client(base_url=rows_server.url, timeout=60) as client:
        yield client

"""The main job on a real model, as `make demo` runs it.

Starts the server with its defaults in a folder of its own (SQLite, in-process worker) and posts a
trained text-detection model (PP-OCR v4) over HTTP. Shows how the plan found compares with every single
target, and runs the artifact through `collage.load`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

import collage
from benchmarks.support.models import benchmark_model
from collage.artifact.artifact import Artifact
from collage.backends.contract import Available
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.registry import backends
from collage.cli.progress import progress
from collage.cli.summary import labeled, show_comparison, warnings
from collage.cli.tables import stdout_console
from collage.client.tune import tune_remotely

_WANTED = ("onnxruntime", "openvino", "mnn")
_MODEL = "ppocr_det"
_START_TIMEOUT_S = 60.0
# Confirming the winner comes on top, and all of it is to take less than two minutes.
_TIME_LIMIT_S = 40.0


def main() -> int:
    """Run the demo; its files are left in demo-output/."""
    folder = Path("demo-output")
    folder.mkdir(exist_ok=True)
    with _server(folder) as url:
        artifact = _tune(url, folder)
    console = stdout_console()
    show_comparison(console, artifact.report)
    for warning in warnings(artifact.report):
        console.print(labeled(warning), soft_wrap=True)
    print(f"\nwrote {artifact.path}")
    print(f"collage.load verified it and ran it: {_run(artifact)}")
    program = os.path.relpath(Path(sys.executable).with_name("collage"))
    print(f"see why: {program} explain {artifact.path}")
    return 0


def _tune(url: str, folder: Path) -> Artifact:
    targets = [name for name in _WANTED if isinstance(backends()[name].probe(), Available)]
    model = benchmark_model(_MODEL)
    print(f"tuning {model.path.name} (text detection) on {', '.join(targets)}", flush=True)
    with collage.Client(url) as client, progress() as listener:
        return tune_remotely(
            client,
            model.path,
            targets,
            output=folder / f"{_MODEL}.collage.onnx",
            options={"dims": dict(model.dims), "time_limit_s": _TIME_LIMIT_S},
            on_event=listener,
        )


def _run(artifact: Artifact) -> str:
    """Run an artifact once; returns its outputs' names and shapes."""
    with collage.load(artifact.path) as session:
        outputs = session.run(None, seeded_inputs(session.inputs, 0))
        return ", ".join(
            f"{o.name} {np.shape(v)}" for o, v in zip(session.get_outputs(), outputs, strict=True)
        )


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A server of its own while the block runs; yields its URL."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    print(f"starting the server at {url} with SQLite and an in-process worker", flush=True)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "collage", "serve", "--port", str(port)],
            env={**os.environ, "XDG_DATA_HOME": str((folder / "data").resolve())},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_ready(url, server)
            yield url
        finally:
            server.terminate()
            server.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("the server ended; see demo-output/server.log")
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the server did not get ready; see demo-output/server.log")


if __name__ == "__main__":
    sys.exit(main())

"""The main job on real models, as `make demo` runs it.

Starts the server with its defaults in a folder of its own (SQLite, in-process worker), posts a trained
text-detection model (PP-OCR v4) and ResNet-50 with three targets, shows progress as it comes, writes
the artifacts, runs them through `collage.load`, and prints how every single target, greedy and the plan
found compare, measured end to end and interleaved.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

import collage
from benchmarks.support.models import benchmark_model
from collage.backends.contract import Available
from collage.backends.numerics.reference import seeded_inputs
from collage.backends.registry import backends
from collage.cli.tables import show_report
from collage.client.tune import tune_remotely
from collage.events import Event

_WANTED = ("onnxruntime", "openvino", "mnn")
_MODELS = ("ppocr_det", "light_resnet50")
_START_TIMEOUT_S = 60.0
# A demo should not take long; without a limit the search would go on while it finds promising plans.
_TIME_LIMIT_S = 45.0


def main() -> int:
    """Run the demo; its files are left in demo-output/."""
    folder = Path("demo-output").resolve()
    folder.mkdir(exist_ok=True)
    targets = [name for name in _WANTED if isinstance(backends()[name].probe(), Available)]
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    print(f"starting the server at {url} with SQLite and an in-process worker", flush=True)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "collage", "serve", "--port", str(port)],
            env={**os.environ, "XDG_DATA_HOME": str(folder / "data")},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_ready(url, server)
            for name in _MODELS:
                _tune(url, name, targets, folder)
        finally:
            server.terminate()
            server.wait(30)
    print(f"\nartifacts, reports and the server's log are in {folder}")
    return 0


def _tune(url: str, name: str, targets: list[str], folder: Path) -> None:
    # Of the onnx package's ResNet-50 every output is the same whatever it is given; the benchmarks' has other weights.
    model = benchmark_model(name)
    print(f"\n== {name}: POST {model.path.name} with {', '.join(targets)}", flush=True)
    begin = time.monotonic()
    with collage.Client(url) as client:
        artifact = tune_remotely(
            client,
            model.path,
            targets,
            output=folder / f"{name}.collage.onnx",
            options={"dims": dict(model.dims), "time_limit_s": _TIME_LIMIT_S},
            on_event=_say,
        )
    print(f"tuned in {time.monotonic() - begin:.1f} s")
    show_report(artifact.report)
    with collage.load(artifact.path) as session:
        feed = seeded_inputs(session.inputs, 0)
        outputs = session.run(None, feed)
        shapes = ", ".join(
            f"{o.name} {np.shape(v)}" for o, v in zip(session.get_outputs(), outputs, strict=True)
        )
        print(f"collage.load verified {len(session.targets)} partition(s) and ran: {shapes}")


def _say(event: Event) -> None:
    print(f"  {event.stage:>11}: {event.message}", flush=True)


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

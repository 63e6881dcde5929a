"""A server with 300 clients while it tunes: how fast it answers, and if measurements are disturbed.

    python -m benchmarks.server_load

The same 20 jobs run twice on a server with two job processes over empty databases. The first time, half
of the clients poll, and half follow jobs by event streams, which most leave in the middle and come back;
at the end all leave at once. The second time, there are no clients (`--alone` leaves that out). All run on one machine over loopback. The server has one core for itself (`COLLAGE_SERVER_CORES=1`), which
the clients share. Costs that both runs measured are compared by key: the calibration run's time and the
latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
from onnx import helper, numpy_helper

JOBS = 20
_FORM = {"targets": '["onnxruntime"]', "options": '{"time_limit_s": 5}'}
# People come one after the other, not at the moment in which a server has just started; each at a time of its own
# within the seconds that it counts.
_ARRIVAL_S, _GOLDEN = 10.0, 0.618034
# How long a stream is followed that is left in the middle, about.
_STAY_S = 4.0
_POLLED = ("/v1/jobs?limit=20", "/v1/jobs/{job}", "/v1/costs?limit=20", "/", "/healthz")


@dataclass
class Watch:
    """What the clients saw.

    Args:
        seconds: time of each GET, by the path's pattern.
        events: server-sent events that came.
        errors: what was no answer of status 200.
        left: streams that were left in the middle.
        after_s: time of `/healthz` after all have left at once.
        load: the machine's load average at the beginning and at the end.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    events: int = 0
    errors: list[str] = field(default_factory=list)
    left: int = 0
    after_s: float = 0.0
    load: list[float] = field(default_factory=lambda: [os.getloadavg()[0]])


class Connection:
    """One keep-alive connection of HTTP/1.1: as little work for the client as can be."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> int:
        """The status of an answer, which is read to its end."""
        reader, _ = await self._send(path)
        status, headers = await self._head(reader)
        if "content-length" in headers:
            await reader.readexactly(int(headers["content-length"]))
        else:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        return status

    async def stream(self, path: str, watch: Watch, stay_s: float) -> int:
        """Count events until the stream ends, or is left after `stay_s` without a word."""
        reader, writer = await self._send(path)
        status, _ = await self._head(reader)
        try:
            async with asyncio.timeout(stay_s):
                while status == 200 and (size := int(await reader.readline() or b"0", 16)):
                    watch.events += (await reader.readexactly(size + 2)).count(b"data: ")
        except TimeoutError:
            watch.left += 1
        finally:
            writer.transport.abort()
            self._streams = None
        return status

    async def _send(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())
        await writer.drain()
        return reader, writer

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): text.strip() for name, _, text in fields}


async def crowd(port: int, jobs: list[str], clients: int, interval_s: float, seconds: float) -> Watch:
    """Half of the clients poll, half follow jobs, until the time is over."""
    watch = Watch()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    def arrival_s(number: int) -> float:
        return _ARRIVAL_S * number // clients + interval_s * (number * _GOLDEN % 1)

    async def poll(number: int) -> None:
        connection = Connection(port)
        await asyncio.sleep(arrival_s(number))
        while loop.time() < end:
            pattern = _POLLED[number % len(_POLLED)]
            begin = loop.time()
            status = await connection.get(pattern.format(job=jobs[number % len(jobs)]))
            watch.seconds.setdefault(pattern, []).append(loop.time() - begin)
            if status != 200:
                watch.errors.append(f"{pattern}: {status}")
            number += 1
            await asyncio.sleep(max(0.0, begin + interval_s - loop.time()))

    async def follow(number: int) -> None:
        await asyncio.sleep(arrival_s(number))
        while loop.time() < end:
            path = f"/v1/jobs/{jobs[number % len(jobs)]}/events"
            stay_s = _STAY_S * (0.2 + number * _GOLDEN % 1) if number % 5 else seconds
            status = await Connection(port).stream(path, watch, stay_s)
            if status != 200:
                watch.errors.append(f"events: {status}")
            await asyncio.sleep(interval_s)
            number += 7

    async def guarded(work: Any) -> None:
        try:
            async with asyncio.timeout_at(end):
                await work
        except TimeoutError:
            pass  # all leave at the end
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            watch.errors.append(repr(error))

    async def wait() -> None:
        await asyncio.sleep(seconds)

    async def look_after() -> None:
        begin = loop.time()
        await Connection(port).get("/healthz")
        watch.after_s = loop.time() - begin
        watch.load.append(os.getloadavg()[0])

    work: list[Any] = [(poll if number % 2 else follow)(number) for number in range(clients)]
    await asyncio.gather(wait(), *map(guarded, work))
    await look_after()
    return watch


def run(folder: Path, clients: int, interval_s: float, seconds: float) -> tuple[Watch, dict[str, Any]]:
    """Start a server, post the jobs, poll it, and return its costs.

    Returns:
        What the clients saw, and the costs by key.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "COLLAGE_PORT": str(port),
        "COLLAGE_DATA_DIR": str(folder),
        "COLLAGE_DATABASE_URL": f"sqlite:///{folder / 'costs.db'}",
        "COLLAGE_RUNNERS": "2",
        "COLLAGE_SERVER_CORES": "1",
        "COLLAGE_LOG_LEVEL": "warning",
    }
    cores = os.sched_getaffinity(0)
    server = subprocess.Popen([sys.executable, "-m", "collage", "serve"], env=environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            _wait(http)
            os.sched_setaffinity(0, sorted(cores)[:1])  # beside the server
            jobs = []
            for number in range(JOBS):
                files = {"model": ("m.onnx", _model(16 + number))}
                answer = http.post("/v1/jobs", files=files, data=_FORM)
                jobs.append(answer.raise_for_status().json()["id"])
            watch = asyncio.run(crowd(port, jobs, clients, interval_s, seconds))
            items = http.get("/v1/costs", params={"limit": 1000}).json()["items"]
            states = [http.get(f"/v1/jobs/{job}").json()["state"] for job in jobs]
    finally:
        os.sched_setaffinity(0, cores)
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    print(f"  jobs: {', '.join(f'{states.count(s)} {s}' for s in sorted(set(states)))}", flush=True)
    watch.errors += [f"job {state}" for state in states if state == "failed"]
    return watch, {item["digest"]: item for item in items if item["outcome"] == "measured"}


def _model(width: int) -> bytes:
    """Six convolutions with ReLU; models of other widths share no costs."""
    rng = np.random.default_rng(width)
    nodes, weights, before, channels = [], [], "x", 3
    for n in range(6):
        values = rng.standard_normal((width, channels, 3, 3)).astype(np.float32) / (3 * channels**0.5)
        weights.append(numpy_helper.from_array(values, f"w{n}"))
        nodes.append(helper.make_node("Conv", [before, f"w{n}"], [f"c{n}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [f"r{n}"]))
        before, channels = f"r{n}", width
    shape = [1, width, 64, 64]
    graph = helper.make_graph(
        nodes,
        "load",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 64, 64])],
        [helper.make_tensor_value_info(before, onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def _wait(http: httpx.Client) -> None:
    for _ in range(300):
        try:
            if http.get("/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def tell(watch: Watch) -> None:
    """Print what the clients saw."""
    times = sorted(second for each in watch.seconds.values() for second in each)
    print(f"  {len(times)} GETs, {watch.events} events, {len(watch.errors)} errors {watch.errors[:3]}")
    begin, end = watch.load[0], watch.load[-1]
    print(
        f"  {watch.left} streams were left; after all left at once, an answer took {watch.after_s * 1e3:.0f} ms"
    )
    print(f"  load average {begin:.1f} to {end:.1f}")
    for name, each in [("all", times), *sorted(watch.seconds.items())]:
        ordered = sorted(each)
        median, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
        print(f"  {re.sub('[{}]', '', name):20} median {median * 1e3:5.1f} ms, p99 {p99 * 1e3:6.1f} ms")


def main() -> None:
    """Watched, then unwatched, then the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--interval-s", type=float, default=1.0, help="between the polls of one client")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--alone", action="store_true", help="no second run without clients")
    given = parser.parse_args()
    costs = []
    for clients in (given.clients,) if given.alone else (given.clients, 0):
        print(f"{clients} clients:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            watch, found = run(Path(folder), clients, given.interval_s, given.seconds)
        if clients:
            tell(watch)
        costs.append(found)
    if given.alone:
        return
    watched, alone = costs
    both = sorted(watched.keys() & alone.keys())
    print(
        f"{len(both)} costs were measured in both runs; watched over unwatched, median (and quartiles):"
    )
    for name in ("yardstick_us", "latency_us"):
        ratios = [watched[key][name] / alone[key][name] for key in both]
        if len(ratios) < 2:
            raise SystemExit("too few to compare: give it more seconds")
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {name:13} {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()

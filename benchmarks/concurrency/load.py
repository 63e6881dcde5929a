"""Contenders measured in turn, each in a process of its own, round after round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.concurrency.contenders import Contender, Feed

_HANGS_S = 300.0


@dataclass(frozen=True)
class Row:
    """What a contender did with so many clients: medians over rounds."""

    contender: str
    kind: str
    clients: int
    throughput_per_s: float
    median_us: float
    p99_us: float
    cpu_us: float  # of one request, on all cores together; other processes hardly change it
    peak_rss_bytes: int
    rates_per_s: tuple[float, ...] = ()  # the throughput of each round


def measure(
    contenders: Sequence[Contender],
    feed: Feed,
    clients: Sequence[int],
    seconds: float,
    rounds: int,
) -> list[Row]:
    """Measure each contender with each number of clients; rounds go forwards and backwards in turn."""
    found: dict[tuple[int, int], list[Mapping[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "feed.npz"
        np.savez(file, allow_pickle=False, **feed)
        for number in range(rounds):
            order = range(len(contenders)) if number % 2 == 0 else reversed(range(len(contenders)))
            for i in order:
                for count, seen in _in_a_process(contenders[i], file, clients, seconds).items():
                    found.setdefault((i, count), []).append(seen)
    return [
        Row(
            contender=contender.name,
            kind=contender.kind,
            clients=count,
            throughput_per_s=statistics.median(s["throughput_per_s"] for s in found[i, count]),
            median_us=statistics.median(s["median_us"] for s in found[i, count]),
            p99_us=statistics.median(s["p99_us"] for s in found[i, count]),
            cpu_us=statistics.median(s["cpu_us"] for s in found[i, count]),
            peak_rss_bytes=int(statistics.median(s["peak_rss_bytes"] for s in found[i, count])),
            rates_per_s=tuple(s["throughput_per_s"] for s in found[i, count]),
        )
        for i, contender in enumerate(contenders)
        for count in clients
    ]


def best(rows: Sequence[Row], clients: int, ours: bool) -> Row:
    """The row with the highest throughput, of ours or of the peers."""
    return max(
        (row for row in rows if row.clients == clients and (row.kind == "ours") == ours),
        key=lambda row: row.throughput_per_s,
    )


def table(rows: Sequence[Row]) -> str:
    """All rows for people."""
    lines = [
        f"{'':34} {'clients':>7} {'requests/s':>11} {'median ms':>10} {'p99 ms':>8} {'CPU ms':>7} {'MiB':>6}"
    ]
    lines += [
        f"{row.contender:34} {row.clients:7} {row.throughput_per_s:11.1f} {row.median_us / 1e3:10.2f} "
        f"{row.p99_us / 1e3:8.2f} {row.cpu_us / 1e3:7.2f} {row.peak_rss_bytes >> 20:6}"
        for row in rows
    ]
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """All rows as JSON-ready data."""
    return [asdict(row) for row in rows]


def _in_a_process(
    contender: Contender, feed: Path, clients: Sequence[int], seconds: float
) -> dict[int, Mapping[str, float]]:
    asked = {**asdict(contender), "path": str(contender.path)}
    words = [sys.executable, "-m", "benchmarks.concurrency.load", json.dumps(asked), str(feed)]
    words += [json.dumps(list(clients)), str(seconds)]
    done = subprocess.run(
        words,
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=_HANGS_S + 10 * seconds,
        # It ends without cleaning up, so its files lie where they are removed.
        env={**os.environ, "TMPDIR": str(feed.parent)},
    )
    return {int(count): seen for count, seen in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> None:
    """Measure one contender; prints JSON by number of clients."""
    from collage.backends.machine.resident_memory import peak_bytes

    asked, file, clients, seconds = sys.argv[1:]
    given = json.loads(asked)
    contender = Contender(**{**given, "path": Path(given["path"])})
    with np.load(file) as stored:
        feed = dict(stored)
    load = contender.open(feed)
    load(1, 0.3)
    found = {}
    for count in json.loads(clients):
        load(count, 0.1)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        times = load(count, float(seconds))
        spent_s, spent_cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
        found[count] = {
            "throughput_per_s": len(times) / spent_s,
            "median_us": float(np.median(times)),
            "p99_us": float(np.percentile(times, 99)),
            "cpu_us": spent_cpu_s * 1e6 / len(times),
            "peak_rss_bytes": peak_bytes(),
        }
    print(json.dumps(found), flush=True)
    # OpenVINO may wait for ever for its last callback, which waits for Python to let it in.
    os._exit(0)


if __name__ == "__main__":
    main()

"""How long the atlas takes on a large cost database: made anew, brought up to date, and read."""

from __future__ import annotations

import argparse
import hashlib
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from collage.atlas.atlas import read_atlas
from collage.atlas.page import atlas_page
from collage.cost_db.database import CostDatabase

TARGETS = (
    "onnxruntime -device=0 -ep=cpu -opt=all -spinning=run -threads=2",
    "openvino -denormals=keep -hint=latency -pinning=off -precision=f32 -streams=1 -threads=2",
    "mnn -precision=normal -threads=2 -winograd=exact",
    "ncnn -precision=f32 -threads=2 -winograd=on",
)
KINDS, SHAPES = 60, 7
START = datetime(2026, 1, 1, tzinfo=UTC)


def _digest(*words: object) -> str:
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()


def _rows(first: int, count: int, hardware: str) -> Iterator[tuple[Any, ...]]:
    """Costs of regions, four targets each."""
    generator = random.Random(first)
    protocol = _digest("protocol")
    for number in range(first, first + count):
        region, best_us = _digest("region", number), generator.lognormvariate(4, 1)
        for target in TARGETS:
            latency_us = best_us * generator.lognormvariate(0, 0.4)
            at = (START + timedelta(seconds=number)).strftime("%Y-%m-%d %H:%M:%S.%f")
            backend = target.split()[0]
            yield (
                *(_digest(region, target), region, target, backend, "1.0", hardware, protocol),
                *("measured", latency_us, 0.1, "[1.0]", "[]", "host", f"Op{number % KINDS}", 1),
                *(_digest("model", number % 300), "{}", at),
            )


_COLUMNS = (
    *("digest", "sub_graph", "target", "backend", "backend_version", "hardware", "protocol"),
    *("outcome", "latency_us", "spread_us", "samples_us", "node_times_us", "host", "op_types"),
    *("node_count", "model_sha256", "versions", "created_at"),
)


def fill(path: Path, first: int, regions: int, hardware: str) -> None:
    """Add synthetic costs, and what their regions are."""
    places = ", ".join("?" for _ in _COLUMNS)
    with sqlite3.connect(path) as connection:
        connection.executemany(
            f"INSERT INTO costs ({', '.join(_COLUMNS)}) VALUES ({places})",
            _rows(first, regions, hardware),
        )
        connection.executemany(
            "INSERT INTO regions VALUES (?, ?, ?, ?)",
            (
                (_digest("region", n), f"Op{n % KINDS}", f"4-D, class {n // KINDS % SHAPES}", "float32")
                for n in range(first, first + regions)
            ),
        )
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    regions = parser.parse_args().rows // len(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.db"
        database = CostDatabase(f"sqlite:///{path}")
        fill(path, 0, regions, _digest("hardware"))

        def timed(what: str, fresh: bool = False) -> None:
            begin = time.perf_counter()
            found = read_atlas(database, "op1 openvino", fresh=fresh)
            atlas_page(found)
            print(f"{what}: {time.perf_counter() - begin:.2f} s, {len(found['rows'])} rows", flush=True)

        timed("made anew")
        timed("read")
        fill(path, regions, 250, _digest("hardware"))
        timed("read after 1,000 more costs")
        timed("made anew, with --fresh", fresh=True)
        database.close()


if __name__ == "__main__":
    main()

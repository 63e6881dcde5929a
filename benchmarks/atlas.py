"""How long the atlas takes on a large cost database: counted, read, and read after more costs."""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import io
import json
import pstats
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
from collage.cost_db.atlas import AtlasStore
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase

TARGETS = (
    "onnxruntime -device=0 -ep=cpu -opt=all -spinning=run -threads=2",
    "openvino -denormals=keep -hint=latency -pinning=off -precision=f32 -streams=1 -threads=2",
    "mnn -precision=normal -threads=2 -winograd=exact",
    "ncnn -precision=f32 -threads=2 -winograd=on",
)
KINDS, SHAPES = 60, 7
START = datetime(2026, 1, 1, tzinfo=UTC)
_UNTIL = START + timedelta(seconds=1_000)


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
    parser.add_argument("--profile", action="store_true", help="also where counting spends its time")
    given = parser.parse_args()
    regions = given.rows // len(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.db"
        database = CostDatabase(f"sqlite:///{path}")
        store = AtlasStore(database)
        fill(path, 0, regions, _digest("hardware"))
        # Rows that came past the program are those of an older database: nothing is counted.
        store.forget()

        def read(what: str) -> None:
            begin = time.perf_counter()
            found = read_atlas(database, "op1 openvino", wait=False)
            atlas_page(found)
            print(f"{what}: {time.perf_counter() - begin:.2f} s, {len(found['rows'])} rows", flush=True)

        read("read before anything is counted")
        begin = time.perf_counter()
        store.count_all(until=lambda: True)
        print(f"the first part of an older database counted: {time.perf_counter() - begin:.2f} s")
        begin, profiler = time.perf_counter(), cProfile.Profile()
        if given.profile:
            profiler.enable()
        store.count_all()
        if given.profile:
            profiler.disable()
        print(f"all the rest: {time.perf_counter() - begin:.2f} s", flush=True)
        if given.profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(12)
        read("read")
        text = "".join(database.export_lines(CostFilter(target=TARGETS[0], until=_UNTIL)))
        more = [_line(line) for line in text.splitlines()]
        begin = time.perf_counter()
        done = database.import_lines(io.StringIO("".join(more)))
        each_ms = (time.perf_counter() - begin) * 1000 / len(more)
        assert done.accepted == len(more), done
        print(f"{len(more)} more costs imported: {each_ms:.2f} ms each", flush=True)
        read("read after these")
        database.close()


def _line(text: str) -> str:
    """An exported cost as that of another target."""
    row = json.loads(text)
    row["target"] = "torch -threads=2"
    names = ("sub_graph", "target", "backend_version", "hardware", "protocol")
    row["digest"] = CostKey(*(row[name] for name in names)).digest
    return json.dumps(row) + "\n"


if __name__ == "__main__":
    main()

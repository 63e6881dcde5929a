"""Eight tuners start the same model at once: how long they take, compared with one alone.

    python -m benchmarks.single_flight

Each tuner is a process of its own; they share one PostgreSQL and one device. Costs are stated
(`benchmarks.support.zero_model`), and a measurement takes a stated time, as on a remote device. So two
cores are enough to see whether tuners repeat each other's work. Tuners that search afresh share costs
alone; the others wait for the first one's result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.zero_model import TARGETS, zero_model
from collage.backends.measurement.measure import Measurement, MeasureRequest
from collage.cost_db.database import CostDatabase
from collage.options import TuneOptions
from collage.runner import Runner
from collage.search.fixed_plans import parse_targets
from collage.tuning.pipeline import run_tuning
from collage.tuning.run import Run, TuneRequest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Flight:
    """What came of tuners that started at once.

    Args:
        wall_s: from the start to the end of the last.
        measured: one text for each measurement that any of them made: target and sub-model.
        plans: each tuner's plan: nodes and target of each partition.
        searched: how many tuners made a search of their own.
    """

    wall_s: float
    measured: tuple[str, ...]
    plans: tuple[list[tuple[tuple[str, ...], str]], ...]
    searched: int


def fly(
    database_url: str, tuners: int, measurement_s: float, folder: Path, *, fresh: bool = False
) -> Flight:
    """Let so many tuners start at once on one database.

    Args:
        database_url: a database whose tables are there.
        tuners: how many processes.
        measurement_s: the stated duration of each measurement.
        folder: an empty one.
        fresh: each makes a search of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "measured.txt"
    log.touch()
    environment = {**os.environ, "COLLAGE_RUNTIME_DIR": str(folder / "run")}
    command = [sys.executable, "-m", "benchmarks.single_flight", "--tuner"]
    command += [database_url, str(measurement_s), str(int(fresh))]
    processes = [
        subprocess.Popen(
            [*command, str(folder / f"tuner-{number}"), str(log)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for number in range(tuners)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    begin = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in processes]
    wall_s = time.monotonic() - begin
    if any(process.returncode for process in processes):
        raise SystemExit("a tuner has failed; what it said is above")
    made = [json.loads(text) for text in printed]
    plans = tuple(
        [(tuple(part["nodes"]), part["target"]) for part in each["plan"]["partitions"]] for each in made
    )
    searched = sum(each["known_since"] is None for each in made)
    return Flight(wall_s, tuple(log.read_text(encoding="utf-8").splitlines()), plans, searched)


def tuner(database_url: str, measurement_s: float, fresh: bool, folder: Path, log: Path) -> None:
    """One of the tuners: wait for a word, tune, print the plan and since when it is known."""

    class Slow(Runner):
        def measure(self, request: MeasureRequest, cancel: threading.Event | None) -> Measurement:
            sub_model = hashlib.sha256(request.model.path.read_bytes()).hexdigest()
            with log.open("a") as lines:
                lines.write(f"{request.target} {sub_model}\n")
            time.sleep(measurement_s)
            return super().measure(request, cancel)

    folder.mkdir()
    source = folder / "model.onnx"
    source.write_bytes(zero_model())
    (folder / "work").mkdir()
    database = CostDatabase(database_url)
    print("ready", flush=True)
    sys.stdin.readline()
    options = TuneOptions.from_json({"time_limit_s": 600, "fresh": fresh})
    request = TuneRequest(source, parse_targets(TARGETS), options)
    made = run_tuning(request, Run(database, folder / "work", Slow()))
    print(json.dumps({"plan": made.plan, "known_since": made.report["known_since"]}))


def main() -> None:
    """Time one tuner, then several that search afresh, then several; each time on an empty database."""
    if sys.argv[1:2] == ["--tuner"]:
        url, measurement_s, fresh, folder, log = sys.argv[2:]
        tuner(url, float(measurement_s), bool(int(fresh)), Path(folder), Path(log))
        return
    from tests.postgres import Postgres

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tuners", type=int, default=8)
    parser.add_argument("--measurement-s", type=float, default=3.0)
    given = parser.parse_args()
    postgres = Postgres()
    try:
        with tempfile.TemporaryDirectory() as folder:
            flights = [
                fly(
                    postgres.new_database(),
                    count,
                    given.measurement_s,
                    Path(folder) / f"{count}-{fresh}",
                    fresh=fresh,
                )
                for count, fresh in ((1, False), (given.tuners, True), (given.tuners, False))
            ]
    finally:
        postgres.close()
    for flight in flights:
        made = len(flight.measured)
        print(
            f"{len(flight.plans)} tuner(s), {flight.searched} of which searched: {flight.wall_s:.1f} s "
            f"({flight.wall_s / flights[0].wall_s:.2f} times one alone), {made} measurements of "
            f"{given.measurement_s:g} s, {made - len(set(flight.measured))} of them made twice"
        )


if __name__ == "__main__":
    main()

"""A diagnosis, a watched artifact and an atlas that are there without a measurement."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from collage.cost_db.atlas import AtlasStore, RegionFacts
from collage.cost_db.costs.key import CostKey
from collage.cost_db.jobs.job import JobResult
from collage.cost_db.tables import UtcTime
from collage.service.jobs.kinds import summary_of
from tests.cost_db.builders import HARDWARE, measured, store_all
from tests.service.conftest import RunningServer
from tests.service.pages.made_jobs import TARGETS, done_job

_TIMES = {
    "latency_us": 1500.0,
    "interval_us": [1480.0, 1520.0],
    "other_latency_us": 1100.0,
    "other_interval_us": [1090.0, 1120.0],
    "ratio": 1.36,
    "ratio_interval": [1.33, 1.4],
}


def diagnosis(**changes: Any) -> dict[str, Any]:
    """A report of two faults, as `collage.diagnosis.output` describes it."""
    elements = [
        {"index": [0, i], "expected": f"{0.5 + i:.7f}", "got": f"{1.0 + i:.7f}"} for i in range(3)
    ]
    reproducer = {"reproduced": True, "imports_collage": False, "model_bytes": 1234}
    culprits = [
        {
            "nodes": [node],
            "operators": op,
            "is_smallest": True,
            "outcome": "wrong",
            "reason": f"'{node}' on sample 0, run 0: error 0.5 (max) exceeds 0.001",
            "error": 0.5,
            "values": {
                "output": f"v{node}", "sample": 0, "run": 0, "error": 0.5, "reason": "",
                "elements": elements, "wrong_elements": 30, "size": 32,
            },
            "reproducer": {"folder": f"culprit-{i}", **reproducer},
        }
        for i, (node, op) in enumerate((("n12", "Conv"), ("n40", "Softmax")))
    ]  # fmt: skip
    values = [
        {"position": p, "node": f"n{p}", "op": "Conv", "value": f"v{p}",
         "error": 1e-7 * math.exp(p / 20) if p < 12 else 0.02 if p < 40 else "infinite"}
        for p in range(0, 60, 2)
    ]  # fmt: skip
    marks = [{"position": 12, "node": "n12"}, {"position": 40, "node": "n40"}]
    return {
        "model_sha256": "ab" * 32,
        "nodes": 60,
        "target": "mnn",
        "version": "3.6.1",
        "hardware": "a machine, 2 cores",
        "tolerance": 1e-3,
        "metric": "max",
        "sampled_inputs": True,
        "refused": [{"op": "TopK", "reason": "int64 indices", "nodes": 2}],
        "faults": {
            "trials": 14,
            "trials_in_all": 30,
            "regions": [{"nodes": 60, "outcome": "wrong", "reason": "error 0.5", "error": 0.5}],
            "culprits": culprits,
            "error_by_depth": {
                "values": values, "marks": marks, "nodes": 60,
                "picture": "error-by-depth.svg", "svg": "<svg/>", "note": "",
            },
        },
        "speed": {"note": "speed is compared where there is no fault"},
        "notes": ["an output is empty for all samples"],
        **changes,
    }  # fmt: skip


def slow_diagnosis() -> dict[str, Any]:
    """A report of a target that is right and slow."""
    region = {
        "nodes": ["n3", "n4"], "operators": "2 nodes: Conv, Relu", "excess_us": 400.0,
        "alone": _TIMES, "in_place": _TIMES,
        "reproducer": {"folder": "slow-0", "ran": True, "imports_collage": False},
    }  # fmt: skip
    sides = [
        {"target": "mnn", "python": "this one", "version": "3.6.1"},
        {"target": "openvino", "python": "this one", "version": "2026.4.1"},
    ]
    right = [{"nodes": 60, "outcome": "right", "reason": "", "error": 2e-7}]
    return diagnosis(
        refused=[],
        notes=[],
        faults={"trials": 1, "trials_in_all": 1, "regions": right, "culprits": [], "error_by_depth": None},
        speed={
            "sides": sides, "errors": [1e-7, 1e-7], "failures": [None, None], "whole": _TIMES,
            "regions": [region], "not_compared": {},
        },
    )  # fmt: skip


def done_diagnosis(server: RunningServer, report: dict[str, Any] | None = None) -> str:
    """The id of a diagnosis that is done with such a report."""
    job = done_job(server)
    made = server.http.post("/v1/diagnoses", json={"job": job, "target": "mnn"}).json()["id"]
    services = server.services
    services.jobs.next_queued("tester", 60.0)
    told = report or diagnosis()
    event = {"stage": "trial", "message": "trial 1: 60 nodes: wrong", "done": 1, "data": {}}
    services.jobs.append_event(made, "progress", event)
    ended = {"stage": "done", "message": "done", "done": None, "total": None}
    summary = summary_of("diagnose", told)
    services.jobs.append_event(made, "summary", summary, progress={**ended, "summary": summary})
    hashes = {}
    for name, data in {"artifact": b"PK", "report": json.dumps(told).encode()}.items():
        blob = services.files.keep_bytes(data)
        services.register.add(blob.sha256, blob.size_bytes, "application/zip")
        hashes[name] = blob.sha256
    services.jobs.finish(made, "done", result=JobResult(**hashes))
    return str(made)


def watched(server: RunningServer, runs: int = 8) -> str:
    """The id of a watch with a history, in this environment and another one."""
    watch = server.http.post("/v1/watches", json={"job": done_job(server), "name": "resnet50"}).json()
    job = server.services.jobs.get(watch["links"]["job"].rsplit("/", 1)[1])
    assert job is not None and job.result.artifact is not None
    store = server.services.watches
    store.give_artifact(watch["id"], job.result.artifact, TARGETS[:2])
    for number in range(runs):
        us = 1500.0 + 10 * (number % 3)
        worse = number == runs - 1
        result = {
            "name": "resnet50", "environment": "next", "verdict": "slower" if worse else "same",
            "reason": "the whole takes 1.120 times as long" if worse else "no change beyond noise",
            "ratio": 1.12 if worse else 1.004, "interval": [1.09, 1.15] if worse else [0.98, 1.02],
            "blocks": [],
        }  # fmt: skip
        measured_here = {
            "at": "2026-11-28T12:00:00+00:00", "key": {"openvino": "2026.4.1"},
            "latency_us": [us, us + 5, us + 9], "over_yardstick": [us / 100, us / 100, us / 100],
            "error": 0.0,
        }  # fmt: skip
        store.note(watch["id"], f"{number:032x}", [result], measured_here)
    # One a day, as a schedule makes them.
    runs_table = sa.table(
        "watch_runs", sa.column("number", sa.Integer()), sa.column("created_at", UtcTime())
    )

    def spread(connection: sa.Connection) -> None:
        for day, number in enumerate(
            connection.execute(sa.select(runs_table.c.number)).scalars().all()
        ):
            moment = datetime.now(UTC) - timedelta(days=runs - day)
            change = sa.update(runs_table).where(runs_table.c.number == number)
            connection.execute(change.values(created_at=moment))

    server.services.database.connections.write(spread)
    return str(watch["id"])


def filled_atlas(server: RunningServer) -> None:
    """Costs of a few classes on four targets."""
    kinds = [
        ("Conv", "4-D 3x3, up to 256k"),
        ("MatMul", "2-D one row, up to 1k"),
        ("Conv Relu", "4-D 1x1, up to 16k"),
    ]
    for position, (kind, shape) in enumerate(kinds):
        names = [f"{position}{i:063x}" for i in range(6)]
        store = AtlasStore(server.services.database)
        store.describe([RegionFacts(name, kind, shape, "float32") for name in names])
        for i, name in enumerate(names):
            rows = [
                measured(
                    key=CostKey(name, f"{target} -threads=2", "1", "hardware-a", "protocol-1"),
                    latency_us=10.0 * (1 + at * (1.3 if position else 0.2)) * (1 + 0.02 * i),
                    op_types=kind,
                    node_count=len(kind.split()),
                    hardware_description=HARDWARE,
                    node_times_us=(),
                )
                for at, target in enumerate(TARGETS)
            ]
            store_all(server.services.database, *rows)

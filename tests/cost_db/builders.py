"""Cost keys and rows for tests, every field filled."""

from __future__ import annotations

from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from typing import Any

from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.row import CostRow
from collage.cost_db.database import CostDatabase

START = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)

HARDWARE = {"cpu": "EPYC", "cores": 2, "flags": ["avx512"]}


def key(number: int = 0, target: str = "openvino -precision=bf16") -> CostKey:
    return CostKey(f"sub-graph {number}", target, "2026.4.1", "hardware-a", "protocol-1")


def measured(number: int = 0, **changes: Any) -> CostRow:
    its_key = changes.pop("key", None) or key(number)
    fields: dict[str, Any] = {
        "latency_us": 0.1 + 0.2 + number,  # not a short decimal: shows that floats come back exactly
        "spread_us": 0.01,
        "samples_us": (0.1 + number, 0.1 + 0.2 + number, 1e-300, 1.7e308),
        "node_times_us": (0.1, 0.2 + number),
        "error": 3e-7,
        "compile_s": 0.25,
        "peak_memory_bytes": 5_000_000_000,
        "yardstick_us": 100.5,
        "host": "host-a",
        "hardware_description": HARDWARE,
        "op_types": "Conv Relu",
        "node_count": 2,
        "model_sha256": "ab" * 32,
        "versions": {"onnx": "1.23.2"},
        "created_at": START + timedelta(seconds=number),
    }
    return CostRow(its_key.digest, *astuple(its_key), "measured", **(fields | changes))


def infeasible(number: int = 0, **changes: Any) -> CostRow:
    its_key = changes.pop("key", None) or key(number)
    fields: dict[str, Any] = {
        "reason": "crash: signal 11",
        "host": "host-a",
        "hardware_description": HARDWARE,
        "created_at": START,
    }
    return CostRow(its_key.digest, *astuple(its_key), "infeasible", **(fields | changes))


def store_all(database: CostDatabase, *rows: CostRow) -> None:
    claims = database.claim([row.digest for row in rows], "builder", 60.0)
    for row in rows:
        database.store(row, claims.granted[row.digest])

"""Jobs that are done without a tuning: an artifact, its report and its plan as blobs."""

from __future__ import annotations

import json
from typing import Any

from onnx import helper

from collage.cost_db.jobs.job import JobResult
from tests.service.conftest import RunningServer, post_job, small_model

TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")


def report(partitions: int = 3, nodes: int = 30, **changes: Any) -> dict[str, Any]:
    """A report of a mix that is proven faster, as `collage.report.report` describes it."""
    parts = [
        {
            "target": TARGETS[part % 4],
            "nodes": [f"n{i}" for i in range(nodes) if _part_of(i, nodes, partitions) == part],
            "latency_us": 100.0 * (part + 1),
            "predicted_us": 90.0 * (part + 1),
            "numbers": "f32",
            "why": [f"{TARGETS[part % 4]}: chosen"],
        }
        for part in range(partitions)
    ]
    mix = {"name": "searched 1", "partitions": partitions, "targets": list(TARGETS[:partitions])}
    single = {"partitions": 1, "speedup_over_best_single": 1.0, "speedup_interval": [1.0, 1.0]}
    return {
        "report_version": 1,
        "model_sha256": "ab" * 32,
        "targets": list(TARGETS[:3]),
        "machine": {"label": "", "hardware": "0" * 64, "description": "a machine"},
        "partitions": parts,
        "latency_us": 1500.0,
        "latency_interval_us": [1480.0, 1520.0],
        "baselines": [
            {"target": "onnxruntime", "latency_us": 3000.0, "latency_interval_us": [2950.0, 3050.0]},
            {"target": "openvino", "latency_us": 1700.0, "latency_interval_us": [1650.0, 1750.0]},
            {"target": "mnn", "infeasible": "node n7: int64 inputs are not taken"},
        ],
        "greedy_latency_us": 1900.0,
        "speedup_over_best_single": 1.13,
        "speedup_interval": [1.1, 1.16],
        "predicted_latency_us": 1450.0,
        "additive_error": 50.0,
        "max_relative_error": 1e-6,
        "tolerance": 1e-3,
        "metric": "max",
        "plans": [
            {**mix, "latency_us": 1500.0, "max_relative_error": 1e-6,
             "speedup_over_best_single": 1.13, "speedup_interval": [1.1, 1.16]},
            {**single, "name": "single openvino", "targets": ["openvino"], "latency_us": 1700.0},
            {**single, "name": "single onnxruntime", "targets": ["onnxruntime"], "latency_us": 3000.0},
            {"name": "single mnn", "partitions": 1, "targets": ["mnn"],
             "infeasible": "node n7: int64 inputs are not taken"},
        ],
        "known_since": None,
        "candidates": {"total": 90, "unique": 40, "measured": 10, "from_cache": 28, "infeasible": 2},
        "search": {"objective_us": 1450.0, "bound_us": 1400.0, "optimal": True},
        "refused": [{"target": "mnn", "op": "TopK", "reason": "int64 indices", "nodes": 2, "first": "n7"}],
        "transfers": [
            {"value": f"v{n}", "from": n, "to": n + 1, "bytes": 32, "latency_us": 12.5 * n}
            for n in range(partitions - 1)
        ],
        "warnings": ["inputs were seeded"],
        "seconds": {"search": 1.5},
        **changes,
    }  # fmt: skip


def annotated(partitions: int, nodes: int, **changes: Any) -> bytes:
    """A chain of operators with side branches, annotated as an artifact is."""
    made = []
    for i in range(nodes):
        branch = i % 5 == 0 and i > 0
        inputs = [f"v{i}", f"v{max(0, i - 7)}"] if branch else [f"v{i}"]
        node = helper.make_node("Add" if branch else "Relu", inputs, [f"v{i + 1}"], name=f"n{i}")
        part = _part_of(i, nodes, partitions)
        node.metadata_props.add(key="collage.partition", value=str(part))
        node.metadata_props.add(key="collage.target", value=TARGETS[part % 4])
        made.append(node)
    info = [helper.make_tensor_value_info(f"v{i}", 1, [1, 8]) for i in range(nodes + 1)]
    graph = helper.make_graph(made, "large", [info[0]], [info[-1]], value_info=info[1:-1])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model.metadata_props.add(
        key="collage.report", value=json.dumps(report(partitions, nodes, **changes))
    )
    return bytes(model.SerializeToString())


def _part_of(node: int, nodes: int, partitions: int) -> int:
    return min(node // (nodes // partitions), partitions - 1)


def done_job(server: RunningServer, partitions: int = 3, nodes: int = 30, **changes: Any) -> str:
    """The id of a job that is done with such an artifact."""
    job = post_job(server, small_model()).json()
    events = server.services.jobs
    events.next_queued("tester", 60.0)
    plans = [
        ("single onnxruntime", 3000.0, 1),
        ("single openvino", 1700.0, 1),
        ("searched 1", 1500.0, 3),
    ]
    for name, latency_us, parts in plans:
        data = {
            "plan": name,
            "partitions": parts,
            "targets": [name.split()[-1]] if parts == 1 else list(TARGETS[:3]),
            "latency_us": latency_us,
            "failure": None,
        }
        events.append_event(
            job["id"], "progress", {"stage": "end_to_end", "message": name, "data": data}
        )
    measured = {"target": "mnn", "reason": "crash: signal 11", "latency_us": None}
    for _ in range(2):
        events.append_event(
            job["id"], "progress", {"stage": "measure", "message": "mnn failed", "data": measured}
        )
    said = json.dumps(report(partitions, nodes, **changes)).encode()
    hashes = {}
    for name, data in {"artifact": annotated(partitions, nodes), "report": said, "plan": b"{}"}.items():
        blob = server.services.files.keep_bytes(data)  # type: ignore[arg-type]
        server.services.register.add(blob.sha256, blob.size_bytes, "application/octet-stream")
        hashes[name] = blob.sha256
    events.finish(job["id"], "done", result=JobResult(**hashes))
    return str(job["id"])

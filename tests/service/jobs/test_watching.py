"""Monitoring: metrics for Prometheus, and log lines with one request id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.conftest import RunningServer, post_job


def _numbers(server: RunningServer) -> dict[tuple[str, ...], float]:
    text = server.http.get("/metrics").text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.slow
def test_metrics_count_queue_measurements_hits_and_latencies(server: RunningServer) -> None:
    post_job(server)
    cancelled = post_job(server).json()
    server.http.delete(cancelled["links"]["self"])
    report = {"candidates": {"measured": 7, "infeasible": 2, "from_cache": 5}}
    server.services.runner._count_candidates(report)
    numbers = _numbers(server)
    assert numbers["collage_jobs", "queued"] == 1 and numbers["collage_jobs", "cancelled"] == 1
    assert numbers["collage_candidates_total", "measured"] == 7
    assert numbers["collage_candidates_total", "infeasible"] == 2
    assert numbers["collage_candidates_total", "from_cache"] == 5
    assert numbers["collage_http_request_seconds_count", "POST", "/v1/jobs", "201"] == 2
    assert numbers["collage_http_request_seconds_sum", "POST", "/v1/jobs", "201"] > 0
    with server.http.stream("GET", f"/v1/jobs/{post_job(server).json()['id']}/events") as stream:
        lines = stream.iter_lines()  # kept: a dropped iterator closes the stream
        next(lines)
        assert _numbers(server)["collage_event_streams",] == 1


@pytest.mark.slow
def test_metrics_do_not_grow_with_what_strangers_ask_for(server: RunningServer) -> None:
    for number in range(5):
        server.http.get(f"/v1/jobs/{number:032x}")
        server.http.get(f"/nowhere/{number}")
    routes = {key[2] for key in _numbers(server) if key[0] == "collage_http_request_seconds_count"}
    assert routes <= {"/v1/jobs/{job_id}", "unmatched", "/metrics"}


@pytest.mark.parametrize("bad", ["", "x" * 65, "a b", "é", "a;b"])
def test_a_request_id_that_could_forge_a_log_line_is_replaced(
    shared_server: RunningServer, bad: str
) -> None:
    answer = shared_server.http.get("/healthz", headers={"X-Request-ID": bad.encode()})
    assert answer.headers["X-Request-ID"] != bad and len(answer.headers["X-Request-ID"]) == 16


@pytest.mark.slow
def test_every_request_has_one_line_with_its_id(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "COLLAGE_DATA_DIR": str(tmp_path / "data"),
        "COLLAGE_DATABASE_URL": f"sqlite:///{tmp_path / 'costs.db'}",
        "COLLAGE_PORT": "18744",
        "COLLAGE_RUNNERS": "0",
        "COLLAGE_LOG_FORMAT": "json",
    }
    command = [sys.executable, "-m", "collage", "serve"]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, encoding="utf-8")
    transport = httpx.HTTPTransport(retries=6)
    try:
        with httpx.Client(base_url="http://127.0.0.1:18744", transport=transport, timeout=60) as http:
            http.get("/v1/jobs", headers={"X-Request-ID": "mine-1"})
            http.get("/v1/jobs/nonsense", headers={"X-Request-ID": "mine-2"})
    finally:
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=30)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    ours = {line["request_id"]: line for line in lines if line.get("event") == "request"}
    assert ours["mine-1"]["path"] == "/v1/jobs" and ours["mine-1"]["status"] == 200
    assert ours["mine-2"]["status"] == 422 and ours["mine-2"]["ms"] >= 0
    assert all(line["level"] and line["timestamp"] for line in lines)

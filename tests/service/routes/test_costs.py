"""Costs over HTTP: times and hashes of filters, types of imports, and what a server's fault says."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
import structlog

from collage.cost_db.errors import DatabaseError
from collage.service.http.problems import _KINDS, _SERVER_FAULTS
from tests.cost_db.builders import infeasible, measured, store_all
from tests.service.conftest import ENGINES, RunningServer, post_job

pytestmark = ENGINES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00", "1e9"]
)
def test_a_time_that_no_database_keeps_is_refused(
    shared_server: RunningServer, name: str, moment: str
) -> None:
    for path in ("/v1/costs", "/v1/costs/export"):
        answer = shared_server.http.get(path, params={name: moment})
        assert answer.status_code == 422, answer.text
        assert name in answer.json()["errors"][0]["where"]
    edge = {"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T23:59:59Z"}
    assert shared_server.http.get("/v1/costs", params=edge).status_code == 200


@pytest.mark.slow
def test_costs_are_found_by_both_hashes_of_a_model(server: RunningServer) -> None:
    job = post_job(server).json()
    normalized = "12" * 32
    store_all(server.services.database, measured(1, model_sha256=normalized), measured(2))
    jobs = server.services.jobs
    taken = jobs.next_queued("worker", 60.0)
    assert taken is not None
    jobs.note_normalized(job["id"], normalized, attempt=taken.attempt)
    jobs.note_normalized(job["id"], normalized, attempt=taken.attempt)
    shown = server.http.get(job["links"]["self"]).json()
    assert shown["normalized_sha256"] == normalized and shown["model_sha256"] == job["model_sha256"]
    for sha256 in (shown["normalized_sha256"], shown["model_sha256"]):
        found = server.http.get("/v1/costs", params={"model": sha256}).json()["items"]
        assert [cost["normalized_sha256"] for cost in found] == [normalized]
        assert server.http.get("/costs", params={"model": sha256}).status_code == 200
    assert server.http.get("/v1/costs", params={"model": "cd" * 32}).json()["items"] == []
    gone = server.http.delete("/v1/costs", params={"model": shown["model_sha256"]})
    assert gone.json() == {"deleted": 1}


def test_an_export_is_imported_again(server: RunningServer) -> None:
    odd = "a\u2028b\u2029c\u0085d"
    store_all(server.services.database, infeasible(1, reason=odd), measured(2))
    lines = server.http.get("/v1/costs/export").content
    server.http.delete("/v1/costs", params={"everything": "true"})
    headers = {"Content-Type": "application/x-ndjson"}
    done = server.http.post("/v1/costs/import", content=lines, headers=headers).json()
    assert done == {"accepted": 2, "known": 0, "refused": []}
    assert server.http.get("/v1/costs/export").content.count(odd.encode()) == 1


@pytest.mark.slow
def test_damaged_bytes_are_refused_by_their_line(server: RunningServer) -> None:
    store_all(server.services.database, infeasible(1, reason="fine"), infeasible(2, reason="bad"))
    lines = server.http.get("/v1/costs/export").content
    server.http.delete("/v1/costs", params={"everything": "true"})
    damaged = lines.replace(b"bad", b"b\xffd")
    number = [b"\xff" in line for line in damaged.split(b"\n")].index(True) + 1
    headers = {"Content-Type": "application/x-ndjson"}
    done = server.http.post("/v1/costs/import", content=damaged, headers=headers).json()
    assert done["accepted"] == 1 and [each["line"] for each in done["refused"]] == [number]
    assert "UTF-8" in done["refused"][0]["reason"]


@pytest.mark.slow
def test_an_import_of_another_type_is_refused(shared_server: RunningServer) -> None:
    for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded", ""):
        headers = {"Content-Type": kind} if kind else {}
        answer = shared_server.http.post("/v1/costs/import", content=b"{}\n", headers=headers)
        assert answer.status_code == 415, kind
        assert "application/x-ndjson" in answer.json()["detail"]
    large = shared_server.http.post(
        "/v1/costs/import",
        content=b"x" * ((64 << 20) + 1),
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert large.status_code == 413
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    typed = {"Content-Type": "application/x-ndjson; charset=utf-8"}
    answer = shared_server.http.post("/v1/costs/import", content=deep, headers=typed)
    assert answer.status_code == 200
    assert "nested deeper than 32" in answer.json()["refused"][0]["reason"]


def test_a_server_fault_tells_nothing_of_the_inside(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "database /srv/secret.db: SELECT password FROM users"
    faults = (
        DatabaseError(secret),
        sa.exc.SQLAlchemyError(secret),
        OSError(5, secret),
        OSError(28, secret),
        RuntimeError(secret),
        *(kind(secret) for kind, status, _ in _KINDS if status >= 500),
    )
    for fault in faults:

        def fail(*_: object, fault: Exception = fault, **__: object) -> None:
            raise fault

        monkeypatch.setattr(type(server.services.jobs), "list", fail)
        with structlog.testing.capture_logs() as logs:
            # The server closes the connection after a mistake of its own.
            answer = server.http.get("/v1/jobs", headers={"Connection": "close"})
        assert answer.status_code >= 500
        assert "secret" not in answer.text and "SELECT" not in answer.text
        assert answer.json()["detail"] in _SERVER_FAULTS.values()
        assert answer.json()["request_id"]
        assert any(entry["log_level"] == "error" for entry in logs), "the reason is in the log"

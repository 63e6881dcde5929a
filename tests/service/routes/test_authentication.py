"""Tokens: access by scope, rate limits, and requests that other web sites make a browser send."""

from __future__ import annotations

import pytest

from collage.cost_db.tokens import Quotas
from collage.service.http.rates import Rates
from collage.service.settings import Settings
from tests.service.conftest import ENGINES, RunningServer, StartServer, post_job

pytestmark = ENGINES


def _bearer(server: RunningServer, *scopes: str, quotas: Quotas | None = None) -> dict[str, str]:
    _, secret = server.services.tokens.create("test", scopes, quotas=quotas)
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture(scope="module")
def guarded_server(start_shared: StartServer) -> RunningServer:
    return start_shared(authentication="on")


@pytest.fixture
def guarded(guarded_server: RunningServer) -> RunningServer:
    """A server that wants tokens, and a client without one."""
    guarded_server.http.cookies.clear()
    return guarded_server


_READ = ["/v1/jobs", "/v1/models", "/v1/costs", "/v1/costs/stats", "/v1/costs/export", "/v1/targets"]
_READ += ["/v1/workers", "/metrics", f"/v1/jobs/{'0' * 32}"]


@pytest.mark.slow
@pytest.mark.parametrize("path", _READ)
def test_nothing_is_read_without_a_token(guarded: RunningServer, path: str) -> None:
    answer = guarded.http.get(path)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert (
        guarded.http.get(path, headers={"Authorization": "Bearer collage_nonsense"}).status_code == 401
    )
    assert guarded.http.get(path, headers=_bearer(guarded, "read")).status_code in (200, 404)


def test_health_needs_no_token(guarded: RunningServer) -> None:
    assert guarded.http.get("/healthz").status_code == 200
    assert guarded.http.get("/readyz").status_code == 200


def test_scopes_bound_what_a_token_may_do(guarded: RunningServer) -> None:
    reader, tuner, admin = (_bearer(guarded, scope) for scope in ("read", "tune", "admin"))
    assert post_job(guarded, headers=reader).status_code == 403
    job = post_job(guarded, headers=tuner)
    assert job.status_code == 201
    url = job.json()["links"]["self"]
    assert guarded.http.get(url, headers=reader).status_code == 200
    assert guarded.http.delete(url, headers=reader).status_code == 403
    assert guarded.http.delete(url, headers=_bearer(guarded, "tune")).status_code == 403
    assert guarded.http.delete("/v1/costs?everything=true", headers=tuner).status_code == 403
    assert guarded.http.delete("/v1/costs?everything=true", headers=admin).status_code == 200
    assert guarded.http.delete(url, headers=admin).json()["state"] == "cancelled"


def test_a_revoked_token_is_worthless(guarded: RunningServer) -> None:
    token, secret = guarded.services.tokens.create("short-lived", ["read"])
    header = {"Authorization": f"Bearer {secret}"}
    assert guarded.http.get("/v1/jobs", headers=header).status_code == 200
    guarded.services.tokens.revoke(token.id)
    assert guarded.http.get("/v1/jobs", headers=header).status_code == 401


def test_quotas_are_each_tokens_own(guarded: RunningServer) -> None:
    few = _bearer(guarded, "tune", quotas=Quotas(active_jobs=1, stored_bytes=10))
    assert post_job(guarded, b"x" * 9, headers=few).status_code == 201
    again = post_job(guarded, b"x" * 9, headers=few)
    assert again.status_code == 429 and again.json()["type"] == "urn:collage:problem:quota-exceeded"
    large = guarded.http.post("/v1/models", files={"model": ("m", b"y" * 9)}, headers=few)
    assert large.status_code == 429
    slow = _bearer(guarded, "read", quotas=Quotas(requests_per_minute=2))
    answers = [guarded.http.get("/v1/jobs", headers=slow) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 30


def test_a_bucket_fills_with_time() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])
    assert [rates.wait_s("a", 60) for _ in range(60)] == [0.0] * 60
    assert rates.wait_s("a", 60) == pytest.approx(1.0)
    assert rates.wait_s("b", 60) == 0.0
    now[0] = 1.0
    assert rates.wait_s("a", 60) == 0.0
    assert rates.wait_s("none", 0) == 60.0


def test_a_person_signs_in_with_a_cookie(guarded: RunningServer) -> None:
    page = guarded.http.get("/costs")
    assert page.status_code == 303 and page.headers["Location"] == "/login?then=%2Fcosts"
    assert "Token" in guarded.http.get(page.headers["Location"]).text
    wrong = guarded.http.post("/login", data={"token": "collage_x", "then": "/costs"})
    assert wrong.status_code == 401 and "unknown, revoked or expired" in wrong.text
    _, secret = guarded.services.tokens.create("person", ["read"])
    right = guarded.http.post("/login", data={"token": secret, "then": "/costs"})
    assert right.status_code == 303 and right.headers["Location"] == "/costs"
    cookie = right.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert guarded.http.get("/costs").status_code == 200
    assert guarded.http.get("/v1/jobs").status_code == 200
    assert "Sign out" in guarded.http.get("/").text
    assert guarded.http.post("/logout").status_code == 303
    assert guarded.http.get("/costs").status_code == 303


@pytest.mark.parametrize("then", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_signing_in_never_leads_elsewhere(guarded: RunningServer, then: str) -> None:
    _, secret = guarded.services.tokens.create("person", ["read"])
    answer = guarded.http.post("/login", data={"token": secret, "then": then})
    assert answer.headers["Location"] == "/"


@pytest.mark.slow
def test_other_sites_cannot_use_a_browser_against_the_server(server: RunningServer) -> None:
    evil = post_job(server, headers={"Origin": "https://evil.example"})
    assert evil.status_code == 403
    rebound = server.http.get("/v1/jobs", headers={"Host": "evil.example"})
    assert rebound.status_code == 403 and "evil.example" in rebound.json()["detail"]
    own = post_job(server, headers={"Origin": server.url})
    assert own.status_code == 201


def test_tokens_are_off_on_loopback_only() -> None:
    for host, needed in {"127.0.0.1": False, "localhost": False, "::1": False, "0.0.0.0": True}.items():
        assert Settings(host=host).needs_tokens is needed
    assert Settings(host="tuner.example.org").needs_tokens
    assert Settings(authentication="on").needs_tokens

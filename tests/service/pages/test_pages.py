"""The pages as HTML: what they show, and that nothing a user names can become a script."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from collage.service.routes.pages.cost_pages import costs_page
from collage.service.storage.layering import layered
from tests.cost_db.builders import infeasible, measured, store_all
from tests.service.conftest import RunningServer, post_job

STATIC = Path(__file__).resolve().parents[3] / "service" / "static"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/new", "/costs", "/atlas", "/watches", "/workers", "/docs"])
def test_pages_are_whole_and_load_nothing_from_elsewhere(
    shared_server: RunningServer, path: str
) -> None:
    page = shared_server.http.get(path)
    assert page.status_code == 200
    assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert "</html>" in page.text
    for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert address.startswith(("/", "#")), address
        if address.startswith("/static/"):
            assert shared_server.http.get(address).status_code == 200, address
    # Inline scripts and styles would be refused by the policy.
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.text)


@pytest.mark.slow
def test_a_job_shows_its_state(server: RunningServer) -> None:
    job = post_job(server).json()
    assert "small.onnx" in server.http.get("/").text
    page = server.http.get(job["links"]["page"]).text
    assert "place 1 in the queue" in page and f'data-events="/v1/jobs/{job["id"]}/events"' in page
    assert "small.onnx" not in server.http.get("/", params={"state": "done"}).text
    assert server.http.get(f"/jobs/{'0' * 32}").status_code == 404


@pytest.mark.slow
def test_names_are_escaped(server: RunningServer) -> None:
    evil = '"><img src=x onerror=alert(1)>.onnx'
    files = {"model": (evil.replace('"', "'"), b"x")}
    job = server.http.post("/v1/jobs", files=files, data={"targets": "onnxruntime"}).json()
    for path in ("/", f"/jobs/{job['id']}"):
        assert "<img" not in server.http.get(path).text


def test_every_vendored_script_has_its_license() -> None:
    for path in (STATIC / "vendor").iterdir():
        if path.suffix in (".js", ".css"):
            name = path.name.split(".")[0].removesuffix("-bundle")
            assert (STATIC / "vendor" / f"{name}.LICENSE.txt").is_file(), path.name
        assert "sourceMappingURL" not in path.read_text(encoding="utf-8"), (
            "would ask for a file that is not there"
        )


def test_layers_follow_the_edges() -> None:
    places = layered("abcde", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")])
    assert [places[node][1] for node in "abcde"] == [0, 1, 1, 2, 0]
    assert places["b"][0] != places["c"][0]
    assert len({places[node] for node in "abcde"}) == 5


def test_layers_of_a_large_graph_are_quick() -> None:
    nodes = range(5000)
    edges = [(i, i + 1) for i in range(4999)] + [(i, i + 7) for i in range(4990)]
    places = layered(nodes, edges)
    assert all(places[a][1] < places[b][1] for a, b in edges)


@pytest.mark.slow
def test_the_cost_browser_filters(server: RunningServer) -> None:
    store_all(server.services.database, measured(1), infeasible(2))
    fields = re.findall(r'<(?:input|select) name="(\w+)"', server.http.get("/costs").text)
    own = {"request", "services", "visitor", "number"}
    assert set(fields) == {*signature(costs_page).parameters} - own
    everything = server.http.get("/costs").text
    assert "crash: signal 11" in everything and "1.30 µs" in everything
    only = server.http.get("/costs", params={"outcome": "measured", "op_types": "Conv, Relu"}).text
    assert "1.30 µs" in only and "crash: signal 11" not in only
    none = server.http.get("/costs", params={"backend": "mnn"}).text
    assert "No costs match" in none
    before = server.http.get("/costs", params={"until": "2026-01-01T12:00"}).text
    assert "No costs match" in before and 'value="2026-01-01T12:00"' in before
    after = server.http.get("/costs", params={"since": "2026-01-01T12:00"}).text
    assert "crash: signal 11" in after
    assert "is no time" in server.http.get("/costs", params={"since": "soon"}).text


@pytest.mark.slow
def test_costs_over_the_api(server: RunningServer) -> None:
    store_all(server.services.database, *(measured(number) for number in range(5)), infeasible(9))
    http = server.http
    page = http.get("/v1/costs", params={"limit": 4}).json()
    rest = http.get("/v1/costs", params={"limit": 4, "cursor": page["next"]}).json()
    assert len({row["digest"] for row in [*page["items"], *rest["items"]]}) == 6
    assert http.get("/v1/costs/stats").json()["by_outcome"] == {"measured": 5, "infeasible": 1}
    two = http.get("/v1/costs", params={"op_types": ["Conv", "Relu"], "backend": "openvino"}).json()
    assert len(two["items"]) == 5 and two["items"][0]["op_types"] == ["Conv", "Relu"]
    assert http.get("/v1/costs", params={"since": "2026-01-01T12:00:03"}).status_code == 422
    exported = http.get("/v1/costs/export", params={"outcome": "measured"}).text
    assert exported.count("\n") == 5
    assert http.delete("/v1/costs").status_code == 422
    for bad in ("outcome=measured&outcom=infeasible", "backend=mnn&backend=ncnn"):
        assert http.delete(f"/v1/costs?{bad}").status_code == 422
    assert http.delete("/v1/costs", params={"outcome": "measured"}).json() == {"deleted": 5}
    kind = {"Content-Type": "application/x-ndjson"}
    done = http.post("/v1/costs/import", content=exported + "nonsense\n", headers=kind).json()
    assert done["accepted"] == 5 and [line["line"] for line in done["refused"]] == [6]
    assert http.post("/v1/costs/import", content=exported, headers=kind).json()["known"] == 5
    assert http.delete("/v1/costs", params={"everything": "true"}).json() == {"deleted": 6}

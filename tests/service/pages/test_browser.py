"""The pages in a real browser: upload, watch, look at the graph, download, filter; phone, dark, keyboard.

Screenshots are left in tests/output for people to look at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from playwright.sync_api import Browser, Page, expect, sync_playwright

from collage.cost_db.jobs.job import JobResult
from tests.cost_db.builders import infeasible, measured, store_all
from tests.service.conftest import RunningServer, StartServer, post_job, small_model

OUTPUT = Path(__file__).resolve().parents[2] / "output"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_MISSING = "chromium is not installed (apt-get install chromium)"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason=_MISSING),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; where continuous integration lacks it, tests fail rather than skip."""
    if CHROMIUM is None:
        pytest.fail(_MISSING)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which every error in the console is a failure."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    yield opened
    opened.close()
    assert not problems


def _shoot(page: Page, name: str) -> None:
    OUTPUT.mkdir(exist_ok=True)
    page.screenshot(path=OUTPUT / f"{name}.png", full_page=True)


def test_from_upload_to_download(page: Page, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(runners=1)
    source = tmp_path / "small.onnx"
    source.write_bytes(small_model())
    _fill_in(page, server, source)
    _shoot(page, "new-job")
    page.click("button.primary")
    page.wait_for_url("**/jobs/*")
    page.wait_for_selector("#log li")
    _shoot(page, "job-live")
    expect(page.locator(".state")).to_have_text("done", timeout=120_000)
    page.wait_for_selector("#graph[data-ready]")
    _shoot(page, "job-done")
    with page.expect_download() as download:
        page.click("text=Download the artifact")
    saved = tmp_path / "tuned.onnx"
    download.value.save_as(saved)
    onnx.checker.check_model(onnx.load(saved))
    page.goto(server.url)
    expect(page.locator("tbody tr")).to_have_count(1)
    _shoot(page, "jobs")
    page.goto(f"{server.url}/workers")
    expect(page.locator("main")).to_contain_text("idle")
    _shoot(page, "workers")


def test_known_tuning_is_shown_and_may_be_searched_again(
    page: Page, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(runners=1)
    source = tmp_path / "small.onnx"
    source.write_bytes(small_model())
    for fresh, known in ((False, False), (False, True), (True, False)):
        _fill_in(page, server, source)
        page.set_checked("[data-option=fresh]", fresh)
        page.click("button.primary")
        page.wait_for_url("**/jobs/*")
        expect(page.locator(".state")).to_have_text("done", timeout=120_000)
        page.wait_for_selector("#graph[data-ready]")
        expect(page.get_by_text("Known since")).to_have_count(int(known))
        if known:
            _shoot(page, "job-known")


def _fill_in(page: Page, server: RunningServer, source: Path) -> None:
    page.goto(f"{server.url}/new")
    page.set_input_files("input[name=model]", source)
    for box in page.query_selector_all("input[name=target]"):
        box.set_checked(box.get_attribute("value") in ("onnxruntime", "openvino"))
    page.fill("[data-option=time_limit_s]", "5")


def test_a_bad_upload_says_why(page: Page, server: RunningServer, tmp_path: Path) -> None:
    source = tmp_path / "small.onnx"
    source.write_bytes(b"x")
    page.goto(f"{server.url}/new")
    page.set_input_files("input[name=model]", source)
    page.fill("input[name=dims]", "batch")
    page.click("button.primary")
    expect(page.locator("#note")).to_contain_text("name=size")
    page.fill("input[name=dims]", "batch=1")
    page.click("button.primary")
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#state")).to_have_text("queued")
    page.click("text=Cancel")
    expect(page.locator("#state")).to_have_text("cancelled")


def _large_artifact(partitions: int, nodes: int) -> bytes:
    """A chain of operators with side branches, annotated as an artifact is."""
    per_part = nodes // partitions
    made = []
    for i in range(nodes):
        inputs = [f"v{i}"] if i % 5 else [f"v{i}", f"v{max(0, i - 7)}"]
        node = helper.make_node("Relu" if i % 5 else "Add", inputs, [f"v{i + 1}"], name=f"n{i}")
        part = min(i // per_part, partitions - 1)
        for key, value in {
            "collage.partition": str(part),
            "collage.target": ["onnxruntime", "openvino", "mnn", "ncnn"][part % 4],
        }.items():
            node.metadata_props.add(key=key, value=value)
        made.append(node)
    made[0] = helper.make_node("Relu", ["v0"], ["v1"], name="n0")
    for key, value in {"collage.partition": "0", "collage.target": "onnxruntime"}.items():
        made[0].metadata_props.add(key=key, value=value)
    info = [helper.make_tensor_value_info(f"v{i}", 1, [1, 8]) for i in range(nodes + 1)]
    graph = helper.make_graph(made, "large", [info[0]], [info[-1]], value_info=info[1:-1])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


_REPORT = b"""{"latency_us": 1500.0, "latency_interval_us": [1480, 1520], "partitions": [1, 2, 3],
 "baselines": [{"target": "onnxruntime", "latency_us": 2000, "latency_interval_us": [1950, 2050]},
 {"target": "openvino", "latency_us": 1700, "latency_interval_us": [1650, 1750]},
 {"target": "mnn", "infeasible": "node n7: int64 inputs are not taken"}],
 "greedy_latency_us": 1900.0, "speedup_over_best_single": 1.13, "speedup_interval": [1.1, 1.16],
 "predicted_latency_us": 1450.0, "additive_error": 50.0, "max_relative_error": 1e-6,
 "candidates": {"total": 90, "unique": 40, "measured": 10, "from_cache": 28, "infeasible": 2}}"""


def _done_job(server: RunningServer, artifact: bytes) -> str:
    job = post_job(server).json()
    hashes = {}
    for name, data in {"artifact": artifact, "report": _REPORT, "plan": b"{}"}.items():
        blob = server.services.files.keep_bytes(data)
        server.services.register.add(blob.sha256, blob.size_bytes, "application/octet-stream")
        hashes[name] = blob.sha256
    server.services.jobs.finish(job["id"], "done", result=JobResult(**hashes))
    return f"{server.url}/jobs/{job['id']}"


def test_the_graph_of_a_large_model_opens_and_stays_smooth(page: Page, server: RunningServer) -> None:
    page.goto(_done_job(server, _large_artifact(partitions=8, nodes=2000)))
    page.wait_for_selector("#graph[data-ready]")
    assert page.evaluate("collageGraph.cy.nodes().length") == 8
    _shoot(page, "graph-closed")
    page.click("#partitions button >> nth=1")
    assert page.evaluate("collageGraph.cy.nodes('.op').length") == 250
    expect(page.locator("#graph-detail")).to_contain_text("Relu × 200")
    page.wait_for_timeout(400)
    _shoot(page, "graph-open")
    page.evaluate("for (const p of '0234567') collageGraph.toggle(p)")
    assert page.evaluate("collageGraph.cy.nodes('.op').length") == 2000
    pan = """async () => {
      const times = [];
      for (let i = 0; i < 30; i++) {
        const begin = performance.now();
        collageGraph.cy.panBy({ x: 12, y: 6 });
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - begin);
      }
      return times.sort((a, b) => a - b)[15];
    }"""
    # More than once: other load on this machine is no fault of the page.
    assert any(page.evaluate(pan) < 100 for _ in range(5)), "panning 2,000 operators must stay fluent"


def test_keyboard_alone_is_enough(page: Page, server: RunningServer) -> None:
    page.goto(_done_job(server, _large_artifact(partitions=3, nodes=30)))
    page.wait_for_selector("#graph[data-ready]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.partition") == "2":
            break
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert page.evaluate("collageGraph.cy.nodes('.op').length") == 10


def test_the_focus_stays_when_the_list_of_jobs_comes_anew(page: Page, server: RunningServer) -> None:
    job = post_job(server).json()["id"]
    page.goto(server.url)
    page.focus(f"#cancel-{job}")
    first = page.evaluate_handle("document.activeElement")
    page.wait_for_function("(old) => !old.isConnected", arg=first)
    page.wait_for_function("id => document.activeElement.id === id", arg=f"cancel-{job}")


def test_costs_are_filtered_without_a_new_page(page: Page, server: RunningServer) -> None:
    store_all(server.services.database, *(measured(i) for i in range(3)), infeasible(9))
    page.goto(f"{server.url}/costs")
    expect(page.locator("#rows tbody tr")).to_have_count(4)
    _shoot(page, "costs")
    page.select_option("select[name=outcome]", "infeasible")
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    assert "outcome=infeasible" in page.url
    page.fill("input[name=backend]", "nowhere")
    page.keyboard.press("Enter")
    expect(page.locator("#rows")).to_contain_text("No costs match")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readable_on_a_phone_in_light_and_dark(
    browser: Browser, server: RunningServer, scheme: str
) -> None:
    store_all(server.services.database, measured(1))
    job = _done_job(server, _large_artifact(partitions=3, nodes=30))
    context = browser.new_context(
        viewport={"width": 390, "height": 844},
        color_scheme=scheme,  # type: ignore[arg-type]
        has_touch=True,
    )
    page = context.new_page()
    for address, name in {
        "/": "jobs",
        "/new": "new",
        "/costs": "costs",
        "/workers": "workers",
        job: "job",
    }.items():
        page.goto(address if address.startswith("http") else server.url + address)
        page.wait_for_load_state("networkidle")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{name} must not scroll sideways, it is {width} wide"
        ink, paper = page.evaluate(
            "['color', 'backgroundColor'].map(p => getComputedStyle(document.body)[p].match(/\\d+/g).map(Number))"
        )
        assert _contrast(ink, paper) > 7
        _shoot(page, f"phone-{scheme}-{name}")
    context.close()


def _contrast(a: list[float], b: list[float]) -> float:
    """WCAG 2 contrast ratio of two sRGB colors."""
    lights = []
    for color in (a, b):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in np.array(color[:3]) / 255
        ]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return float((max(lights) + 0.05) / (min(lights) + 0.05))


def test_the_api_reference_works_under_the_policy(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/docs")
    expect(page.locator("#operations-jobs-tune")).to_be_visible(timeout=30_000)
    _shoot(page, "docs")

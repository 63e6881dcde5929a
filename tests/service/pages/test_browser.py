"""The pages in a real browser, as a person walks them: form, live job, lists, costs, comparison.

Screenshots are left in tests/output for people to look at.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import onnx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cost_db.builders import infeasible, key, measured, store_all
from tests.service.conftest import RunningServer, StartServer, post_job, small_model
from tests.service.pages.conftest import CHROMIUM, MISSING, downloaded, serious_findings, shoot
from tests.service.pages.made_diagnoses import done_diagnosis, filled_atlas, slow_diagnosis, watched
from tests.service.pages.made_jobs import done_job
from tests.service.pages.new_job_form import fill_in, free_model

_MOST_BYTES = 400_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason=MISSING),
]


def test_from_upload_to_download(page: Page, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(runners=1)
    source = tmp_path / "small.onnx"
    source.write_bytes(small_model())
    fill_in(page, server, source)
    expect(page.locator("#model-facts")).to_contain_text("float")
    shoot(page, "new-job")
    page.press("#submit", "Enter")
    page.wait_for_url("**/jobs/*")
    page.wait_for_selector("#log li", state="attached")
    page.wait_for_function(
        "() => document.querySelector('#measured')?.textContent !== '0'", timeout=60_000
    )
    expect(page.locator("#remaining")).to_contain_text(re.compile("at most|about|finishing"))
    shoot(page, "job-live")
    expect(page.locator("#state")).to_have_text("done", timeout=120_000)
    page.wait_for_selector("#graph[data-ready]")
    expect(page.locator(".banner .headline")).to_be_visible()
    page.click("#tab-events")
    expect(page.locator("#log li").first).to_contain_text("queued")
    shoot(page, "job-done")
    onnx.checker.check_model(onnx.load(downloaded(page, "text=Download the artifact")))
    fill_in(page, server, source)
    page.press("#submit", "Enter")
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#state")).to_have_text("done", timeout=120_000)
    page.click("#tab-options")
    expect(page.locator("#panel-options")).to_contain_text("nothing was measured for this job")
    page.goto(server.url)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.goto(f"{server.url}/workers")
    expect(page.locator("main")).to_contain_text("idle")
    shoot(page, "workers")


def test_free_dimensions_become_fields(page: Page, server: RunningServer, tmp_path: Path) -> None:
    source = tmp_path / "free.onnx"
    source.write_bytes(free_model())
    fill_in(page, server, source)
    expect(page.locator("#dims label")).to_have_count(2)
    page.wait_for_selector("#dims[data-tried]")
    batch, last = page.locator("[data-dim=batch]"), page.locator("[data-dim='x:2']")
    expect(batch).to_have_attribute("placeholder", "1..8")
    expect(last).to_have_attribute("placeholder", "1..1024")
    page.fill("[data-option=tolerance]", "7")
    page.fill("[data-dim=batch]", "8..1")
    page.press("#submit", "Enter")
    expect(page.locator("label[for=option-tolerance] .fault")).to_be_visible()
    expect(page.locator("#dims .fault").first).to_have_text(
        "the range ends before it begins: write 1..8"
    )
    page.click("text=More options")
    page.fill("#option-pins", "Relu")
    page.keyboard.press("Tab")
    expect(page.locator("label[for=option-pins] .fault")).to_contain_text("Conv=openvino")
    shoot(page, "new-job-faults")
    assert not serious_findings(page)
    page.fill("#option-pins", "Relu=openvino")
    page.fill("[data-option=tolerance]", "0.01")
    page.fill("[data-dim=batch]", "2")
    card = page.locator(".target-card[data-target=openvino]")
    card.locator("summary").click()
    card.locator("[data-target-option=precision]").select_option("bf16")
    page.press("#submit", "Enter")
    page.wait_for_url("**/jobs/*")
    job = server.http.get(f"/v1/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert job["options"] == {
        "dims": {"batch": 2, "x:2": "1..1024"},
        "pins": ["Relu=openvino"],
        "time_limit_s": 5,
        "tolerance": 0.01,
    }
    assert job["targets"] == ["onnxruntime", "openvino -precision=bf16"]
    page.click("text=Cancel")
    expect(page.locator("#state")).to_have_text("cancelled")
    expect(page.locator(".banner p").nth(1)).to_have_text(re.compile("^Costs measured so far are kept"))
    expect(page.locator("text=Run again")).to_be_visible()
    shoot(page, "job-cancelled")


def test_a_damaged_model_says_so_at_once(
    browser: Browser, server: RunningServer, tmp_path: Path
) -> None:
    page = browser.new_page()
    source = tmp_path / "bad.onnx"
    source.write_bytes(b"no model")
    page.goto(f"{server.url}/new")
    page.set_input_files("input[name=model]", source)
    expect(page.locator("#model-note")).to_contain_text("not an ONNX model")
    shoot(page, "new-job-damaged")
    page.close()


def test_the_answer_comes_first_and_all_stays(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/jobs/{done_job(server)}")
    page.wait_for_selector("#live[data-ended]", state="attached")
    expect(page.locator(".banner.good .headline")).to_have_text(
        "2.00 × as fast as ONNX Runtime, 1.13 × the best single target, OpenVINO"
    )
    expect(page.locator(".warnings")).to_contain_text("inputs were seeded")
    names = page.locator("ul.chart .name").all_inner_texts()
    assert [name.split(" returned")[0] for name in names] == [
        "searched 1",
        "single openvino",
        "single onnxruntime",
    ]
    page.click("#tab-failures")
    expect(page.locator("#failures tr")).to_have_count(1)
    expect(page.locator("#failures tr")).to_contain_text("crash: signal 11")
    expect(page.locator("#failures td.number")).to_have_text("2")
    expect(page.locator("#panel-failures")).to_contain_text("int64 indices")
    page.click("#tab-progress")
    expect(page.locator("#progress-chart canvas")).to_be_visible()
    expect(page.locator("#progress-legend li")).to_have_count(3)


def test_jobs_are_found_sorted_and_compared(page: Page, server: RunningServer) -> None:
    first, second = done_job(server), done_job(server, partitions=2)
    waiting = post_job(server).json()["id"]
    failed = post_job(server).json()["id"]
    server.services.jobs.finish(failed, "failed", reason="the model is damaged")
    page.goto(server.url)
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(page.locator("main")).to_contain_text("the model is damaged")
    shoot(page, "jobs")
    page.click("#chip-failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{server.url}/?text=nowhere")
    expect(page.locator(".empty")).to_contain_text("No job matches")
    page.goto(f"{server.url}/?sort=speedup")
    page.check(f"#pick-{first}")
    old = page.evaluate_handle("document.querySelector('tbody tr')")
    page.wait_for_function("(row) => !row.isConnected", arg=old)  # the rows came anew
    page.check(f"#pick-{second}")
    expect(page.locator(f"#pick-{first}")).to_be_checked()
    page.click("#compare")
    expect(page.locator("h1")).to_have_text("Compare jobs")
    expect(page.locator("main")).to_contain_text("Which nodes moved")
    assert not serious_findings(page)
    shoot(page, "compare")
    page.goto(server.url)
    page.focus(f"#cancel-{waiting}")
    old = page.evaluate_handle("document.activeElement")
    page.wait_for_function("(old) => !old.isConnected", arg=old)
    page.wait_for_function("id => document.activeElement.id === id", arg=f"cancel-{waiting}")


def test_costs_are_filtered_by_their_cells(page: Page, server: RunningServer) -> None:
    rows = [measured(i) for i in range(3)]
    rows.append(measured(7, key=key(0, "mnn -threads=2")))
    store_all(server.services.database, *rows, infeasible(9))
    page.goto(f"{server.url}/costs")
    expect(page.locator("#rows tbody tr")).to_have_count(5)
    shoot(page, "costs")
    page.select_option("select[name=outcome]", "infeasible")
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    assert "outcome=infeasible" in page.url
    page.goto(f"{server.url}/costs?sort=slowest")
    expect(page.locator("#rows tbody tr").first).to_contain_text("mnn")
    page.locator("#rows tbody tr").first.locator("a.filter").first.click()
    expect(page.locator("#rows")).to_contain_text("1 cost")
    text = downloaded(page, "text=Export (JSON lines)").read_text(encoding="utf-8")
    assert text.count("\n") == 1
    page.click("text=by target")
    expect(page.locator("ul.chart li")).to_have_count(2)
    shoot(page, "sub-graph")


def test_a_slow_target_is_diagnosed_by_a_click(page: Page, server: RunningServer) -> None:
    job = done_job(server)
    page.goto(f"{server.url}/jobs/{job}")
    asked = page.locator(".asked li")
    expect(asked).to_have_count(2)
    expect(asked.nth(0)).to_contain_text("onnxruntime")
    expect(asked.nth(0)).to_contain_text("2.00 ×")
    expect(asked.nth(1)).to_contain_text("it failed")
    page.click("text=Diagnose >> nth=1")
    page.wait_for_url(re.compile(f"/jobs/(?!{job})"))
    expect(page.locator("main")).to_contain_text("Diagnosis of mnn")
    expect(page.locator("#state")).to_have_text("queued")
    made = server.http.get(f"/v1/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert (made["kind"], made["targets"]) == ("diagnose", ["mnn"])
    shoot(page, "diagnosis-waiting")
    page.click("text=Cancel")
    expect(page.locator(".banner")).to_contain_text("was cancelled")
    page.click("text=Run again")
    page.wait_for_url(re.compile(f"/jobs/(?!{made['id']})"))
    expect(page.locator("#state")).to_have_text("queued")
    page.goto("about:blank")


def test_a_diagnosis_says_what_is_wrong_and_where(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/jobs/{done_diagnosis(server)}")
    page.wait_for_selector("#live[data-ended]", state="attached")
    expect(page.locator(".banner.bad .headline")).to_have_text("MNN computes wrong values at 2 places")
    expect(page.locator(".culprit")).to_have_count(2)
    expect(page.locator(".culprit tbody tr")).to_have_count(6)
    expect(page.locator(".depth .mark")).to_have_count(2)
    expect(page.locator(".depth .point")).to_have_count(30)
    expect(page.locator("#log li")).to_have_count(4)
    page.click("#tab-options")
    expect(page.locator("#panel-options")).to_contain_text("Model (SHA-256)")
    page.goto(f"{server.url}/?sort=newest")
    expect(page.locator("tbody tr").first).to_contain_text("2 faults")


def test_an_artifact_is_watched_by_a_click(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/watches")
    expect(page.locator(".empty")).to_contain_text("Nothing is watched yet")
    shoot(page, "watches-empty")
    watched(server)
    job = done_job(server)
    page.goto(f"{server.url}/jobs/{job}")
    page.click("text=Watch >> nth=-1")
    page.wait_for_url("**/watches#watch-*")
    expect(page.locator(".watch")).to_have_count(2)
    expect(page.locator(".watch").nth(0)).to_contain_text("Its tuning is not done yet")
    chart = page.locator(".watch").nth(1).locator("[data-ready] canvas")
    expect(chart).to_be_visible()
    expect(page.locator(".watch").nth(1).locator(".legend li")).to_have_count(3)
    expect(page.locator(".watch").nth(1).locator(".legend .swatch").nth(0)).to_have_class("swatch ink")
    expect(page.locator(".watch").nth(1)).to_contain_text("1.120")
    page.locator(".watch").nth(1).locator("text=Measure now").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("main")).to_contain_text("A measurement of a watched artifact")
    shoot(page, "watch-job")
    page.goto(f"{server.url}/watches")
    page.locator(".watch").nth(1).locator("text=Remove").click()
    expect(page.locator(".watch")).to_have_count(1)


def test_the_atlas_is_searched_filtered_and_sorted(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/atlas")
    expect(page.locator(".empty")).to_contain_text("Nothing to compare yet")
    filled_atlas(server)
    page.goto(f"{server.url}/atlas")
    rows = page.locator("table.atlas tbody tr")
    expect(rows).to_have_count(12)
    expect(page.locator("summary")).to_contain_text("More than twice as slow as another target: 6")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("input[name=search]").press_sequentially("matmul")
    expect(rows).to_have_count(4)
    assert "search=matmul" in page.url
    page.keyboard.press("Tab")
    with page.expect_response("**/atlas?*sort=slowest"):
        page.select_option("select[name=sort]", "slowest")
    # A second answer with the same rows could take away what the reader is about to click.
    assert len([url for url in asked if "/atlas?" in url]) == 2
    expect(rows.first).to_contain_text("ncnn")
    page.select_option("select[name=backend]", "mnn")
    expect(rows).to_have_count(1)
    found = json.loads(downloaded(page, "text=Export (JSON)").read_text(encoding="utf-8"))
    assert len(found["rows"]) == 4 and found["is_whole"]
    page.click("text=Clear")
    expect(rows).to_have_count(12)


def test_errors_are_pages_for_browsers(browser: Browser, server: RunningServer) -> None:
    page = browser.new_page()
    answer = page.goto(f"{server.url}/jobs/{'0' * 32}")
    assert answer is not None and answer.status == 404
    expect(page.locator("h1")).to_have_text("Not Found")
    page.click("text=All jobs")
    expect(page.locator("h1")).to_have_text("Jobs")
    expect(page.locator(".empty")).to_contain_text("No jobs yet")
    page.close()


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_is_readable_light_and_quick(
    browser: Browser, server: RunningServer, look: str
) -> None:
    store_all(server.services.database, measured(1), infeasible(2))
    job = done_job(server)
    found, slow = done_diagnosis(server), done_diagnosis(server, slow_diagnosis())
    watched(server)
    filled_atlas(server)
    size = {"width": 390, "height": 844} if look == "phone" else {"width": 1280, "height": 900}
    scheme = "dark" if look == "dark" else "light"
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    for name, path in {
        "jobs": "/",
        "new": "/new",
        "costs": "/costs",
        "workers": "/workers",
        "compare": f"/compare?job={job}",
        "missing": "/nowhere",
        "job": f"/jobs/{job}",
        "diagnosis": f"/jobs/{found}",
        "slow": f"/jobs/{slow}",
        "watches": "/watches",
        "atlas": "/atlas",
    }.items():
        page = context.new_page()
        sent: list[int] = []
        page.on(
            "requestfinished", lambda request, to=sent: to.append(request.sizes()["responseBodySize"])
        )
        page.goto(server.url + path)
        page.wait_for_load_state("networkidle")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"], f"{name} must not scroll sideways, it is {width} wide"
        assert sum(sent) < _MOST_BYTES, f"{name} sends {sum(sent)} bytes"
        assert serious_findings(page) == [], name
        shoot(page, f"{look}-{name}")
        page.close()
    # More than once: other load on this machine is no fault of the page.
    assert any(_first_paint_ms(context.new_page(), f"{server.url}/jobs/{job}") < 1000 for _ in range(4))
    context.close()


def _first_paint_ms(page: Page, address: str) -> float:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(page.evaluate(script))


def test_the_api_reference_works_under_the_policy(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/docs")
    expect(page.locator("#operations-jobs-tune")).to_be_visible(timeout=30_000)
    shoot(page, "docs")

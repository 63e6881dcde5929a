"""Sizes of free dimensions on the page of a new job: proposed, checked in place, sent as they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from playwright.sync_api import Browser, Page, expect

from collage.partitioner.errors import BadInputError
from collage.shapes.dim_text import parse_dim
from tests.service.conftest import RunningServer, StartServer
from tests.service.pages.conftest import CHROMIUM, MISSING
from tests.service.pages.new_job_form import fill_in, free_model

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason=MISSING),
]

# No size that is tried fits this Reshape.
_NEEDS_17 = """<ir_version: 8, opset_import: ["" : 17]>
g (float[items, 3] x) => (float[17, 3] y)
<int64[2] shape = {17, 3}>
{ r = Reshape(x, shape) y = Relu(r) }"""


@pytest.fixture(scope="module")
def form(
    browser: Browser, start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The form with a model that has free dimensions."""
    source = tmp_path_factory.mktemp("form") / "free.onnx"
    source.write_bytes(free_model())
    opened = browser.new_page()
    fill_in(opened, start_shared(), source)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "“x” is no size: write 16, 16,64 or 1..512"),
        ("-1", "“-1” is no size"),
        ("1,", "“” is no size"),
        ("16,16", "a size is given twice"),
        ("16:0.5,64", "give each size a weight above 0"),
        ("16:0", "give each size a weight above 0"),
        ("1:512", "a weight is for one of several sizes: write 1, or 1..512 for a range"),
        ("320..650/32", "the range does not end on a step"),
        ("1..99999999999", "is no size"),
        ("16", None),
        ("16, 64", None),
        ("16:0.7,64:0.3", None),
        ("1..512", None),
        ("320..640/32", None),
        ("", None),
    ],
)
def test_texts_of_sizes_are_checked_in_place(form: Page, text: str, said: str | None) -> None:
    form.fill("[data-dim=batch]", text)
    form.locator("[data-dim=batch]").dispatch_event("change")
    fault = form.locator("#dims .fault").first
    if said is None:
        expect(fault).to_be_hidden()
        assert not text or parse_dim("batch", text)
    else:
        expect(fault).to_contain_text(said)
        with pytest.raises(BadInputError):
            parse_dim("batch", text)


def test_requests_of_a_log_are_counted_and_sent(
    page: Page, server: RunningServer, tmp_path: Path
) -> None:
    source = tmp_path / "free.onnx"
    source.write_bytes(free_model())
    fill_in(page, server, source)
    page.click("text=Shapes seen in production")
    page.fill("#option-shapes", '{"x": [1, 3, 5]}\nno\n')
    page.press("#submit", "Enter")
    expect(page.locator("label[for=option-shapes] .fault")).to_contain_text("line 2 is not of the form")
    lines = ['{"x": [1, 3, 5]}', "", '{"x": [1, 3, 9]}', '{"x": [1, 3, 5]}']
    page.fill("#option-shapes", "\n".join(lines))
    page.press("#submit", "Enter")
    page.wait_for_url("**/jobs/*")
    job = server.http.get(f"/v1/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert job["options"]["shapes"] == [
        {"sizes": {"x": [1, 3, 5]}, "weight": 2, "repeated": 1},
        {"sizes": {"x": [1, 3, 9]}, "weight": 1, "repeated": 1},
    ]
    assert "dims" not in job["options"]
    page.click("text=Cancel")
    expect(page.locator("#state")).to_have_text("cancelled")


def test_shapes_with_weights_are_sent(page: Page, server: RunningServer, tmp_path: Path) -> None:
    source = tmp_path / "free.onnx"
    source.write_bytes(free_model())
    fill_in(page, server, source)
    page.click("text=Shapes seen in production")
    page.fill("#option-shapes", '{"sizes": {"x": [1, 3, 5]}, "weight": 250}\n{"x": [1, 3, 9]}')
    page.press("#submit", "Enter")
    page.wait_for_url("**/jobs/*")
    job = server.http.get(f"/v1/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert job["options"]["shapes"] == [
        {"sizes": {"x": [1, 3, 5]}, "weight": 250},
        {"sizes": {"x": [1, 3, 9]}, "weight": 1},
    ]
    page.click("text=Cancel")
    expect(page.locator("#state")).to_have_text("cancelled")


def test_a_dimension_without_a_proposal_is_needed(
    page: Page, server: RunningServer, tmp_path: Path
) -> None:
    source = tmp_path / "needed.onnx"
    onnx.save(onnx.parser.parse_model(_NEEDS_17), source)
    fill_in(page, server, source)
    page.wait_for_selector("#dims[data-tried]")
    page.press("#submit", "Enter")
    expect(page.locator("#dims .fault")).to_have_text("this dimension needs a size")

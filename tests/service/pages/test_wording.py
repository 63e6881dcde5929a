"""Pages say what the form's fields are called, where a terminal names flags."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from collage.cli.tune_options import flags
from collage.service.http.html import render
from collage.service.pages.option_fields import label_of
from collage.service.pages.wording import rules, worded
from tests.chromium import needs_chromium
from tests.service.conftest import RunningServer, StartServer

TEXTS = [
    (
        "the time limit of 20 s left out: the search; allow more with --time-limit",
        "the time limit of 20 s left out: the search; allow more with “Time limit (seconds)”",
    ),
    (
        "tune again with --fresh, or wait for them with --wait-for-quiet SECONDS",
        "tune again with “Search again, even where the result is known”, or wait for them with “Wait for quiet cores "
        "(seconds)”",
    ),
    ("give real ones with --inputs: it fails", "give real ones with “Sample inputs (.npz)”: it fails"),
    (
        "the model takes --dim batch=1 --dim 'in=2'; change what does not fit",
        "the model takes “Sizes of batch”: 1, “Sizes of in”: 2; change what does not fit",
    ),
    ("list them: --dim NAME=16,64,128", "list them: “Sizes of NAME”: 16,64,128"),
    (
        "give a size, such as --dim n=1..512, or leave",
        "give a size, such as “Sizes of n”: 1..512, or leave",
    ),
    ("give smaller sizes with --dim", "give smaller sizes with “Sizes of …”"),
    ("add --pin '*=ncnn' for the rest", "add “Pins” '*=ncnn' for the rest"),
    ("collage token create --scope read", "collage token create --scope read"),
    ("use collage diagnose --against-version", "use collage diagnose --against-version"),
    ("a node named x--dim", "a node named x--dim"),
    ("openvino -precision=int8 fails", "openvino -precision=int8 fails"),
]


@pytest.mark.parametrize(("text", "said"), TEXTS)
def test_flags_become_labels_of_the_form(text: str, said: str) -> None:
    assert worded(text) == said
    # Browsers know neither of these forms, and write groups as $1.
    assert not any("(?P" in rule.pattern or "\\g" in rule.shown for rule in rules())


@pytest.mark.parametrize("chromium", [pytest.param(None, marks=needs_chromium, id="chromium")])
def test_browsers_say_the_same(chromium: None, page: Page, shared_server: RunningServer) -> None:
    page.goto(f"{shared_server.url}/new")
    told = page.evaluate("texts => texts.map(wording.of)", [text for text, _ in TEXTS])
    assert told == [said for _, said in TEXTS]


def test_every_flag_of_an_option_has_a_field(shared_server: RunningServer) -> None:
    form = shared_server.http.get("/new").text
    for option, flag in flags().items():
        said = worded(f"give {flag} more")
        assert flag not in said
        if option != "dims":
            assert label_of(option).split(",")[0] in re.sub(r"&#39;", "'", form), option


def test_nothing_that_a_user_names_becomes_a_script() -> None:
    page = render(
        "error.html",
        here="",
        version="1",
        signed_in=False,
        status=404,
        title="Not found",
        detail="--dim '<b>=<i>'",
        request_id=None,
    )
    assert "<b>" not in page and "&lt;b&gt;" in page


@pytest.mark.slow
def test_an_error_page_lets_a_person_sign_out(start_server: StartServer) -> None:
    guarded = start_server(authentication="on")
    _, secret = guarded.services.tokens.create("person", ["tune"])
    headers = {"Accept": "text/html", "Cookie": f"collage_token={secret}"}
    missing = guarded.http.get(f"/jobs/{'0' * 32}", headers=headers)
    assert missing.status_code == 404 and "Sign out" in missing.text
    stranger = guarded.http.get("/nowhere", headers={"Accept": "text/html"})
    assert stranger.status_code == 404 and "Sign out" not in stranger.text

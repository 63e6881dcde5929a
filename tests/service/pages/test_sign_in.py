"""Tokens in a real browser: sign in, work, sign out, and what happens when the token ends meanwhile."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.chromium import needs_chromium, opened
from tests.service.conftest import RunningServer, StartServer, post_job, small_model
from tests.service.pages.conftest import shoot

ROOT = Path(__file__).resolve().parents[3]
browser_test = [pytest.param(None, marks=needs_chromium, id="chromium")]
in_browser = pytest.mark.parametrize("chromium", browser_test)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as found:
        yield found


@pytest.fixture
def guarded(start_server: StartServer) -> RunningServer:
    return start_server(authentication="on")


@pytest.fixture
def visit(browser: Browser, guarded: RunningServer) -> Iterator[Callable[[str], Page]]:
    """Opens a path of the server that wants tokens, in one fresh profile."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()

    def go(path: str) -> Page:
        page.goto(guarded.url + path)
        return page

    yield go
    context.close()


def _sign_in(page: Page, secret: str) -> None:
    page.fill("input[name=token]", secret)
    page.click("main button")


def _token(server: RunningServer, expires_s: float | None = None) -> tuple[str, str]:
    ends = None if expires_s is None else datetime.now(UTC) + timedelta(seconds=expires_s)
    token, secret = server.services.tokens.create("person", ["tune"], expires_at=ends)
    return token.id, secret


@in_browser
def test_a_person_signs_in_works_and_signs_out(
    chromium: None, visit: Callable[[str], Page], guarded: RunningServer, tmp_path: Path
) -> None:
    page = visit("/new")
    expect(page).to_have_url(f"{guarded.url}/login?then=%2Fnew")
    _sign_in(page, "collage_wrong")
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    shoot(page, "sign-in")
    _sign_in(page, _token(guarded)[1])
    expect(page).to_have_url(f"{guarded.url}/new")
    (tmp_path / "m.onnx").write_bytes(small_model())
    page.set_input_files("input[name=model]", tmp_path / "m.onnx")
    page.wait_for_selector("#upload[data-ready]")
    page.click("button.primary")
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#state")).to_have_text("queued")
    page.click("text=Cancel")
    expect(page.locator("#state")).to_have_text("cancelled")
    for name in ("", "atlas", "watches"):
        page.goto(f"{guarded.url}/{name}")
        expect(page.get_by_text("Sign out")).to_be_visible()
        shoot(page, f"signed-in-{name or 'jobs'}")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shoot(page, "signed-in-phone")
    page.click("text=Sign out")
    expect(page).to_have_url(f"{guarded.url}/login")
    expect(visit("/")).to_have_url(f"{guarded.url}/login?then=%2F")


@in_browser
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_page_leads_to_the_sign_in_when_its_token_ends(
    chromium: None, visit: Callable[[str], Page], guarded: RunningServer, how: str
) -> None:
    _, other = _token(guarded)
    post_job(guarded, headers={"Authorization": f"Bearer {other}"})
    page = visit("/")
    token_id, secret = _token(guarded, 6 if how == "expired" else None)
    _sign_in(page, secret)
    expect(page.locator("tbody tr")).to_have_count(1)
    if how == "revoked":
        guarded.services.tokens.revoke(token_id)
    # The list comes anew by itself: never half a page, nor an empty list.
    expect(page).to_have_url(f"{guarded.url}/login?then=%2F", timeout=15_000)
    _sign_in(page, secret)
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")


@in_browser
def test_a_live_job_leads_to_the_sign_in_when_its_token_ends(
    chromium: None, visit: Callable[[str], Page], guarded: RunningServer
) -> None:
    token_id, secret = _token(guarded)
    job = post_job(guarded, headers={"Authorization": f"Bearer {secret}"}).json()["id"]
    page = visit(f"/jobs/{job}")
    _sign_in(page, secret)
    expect(page.locator("#state")).to_have_text("queued")
    while not guarded.services.feed.watchers:
        page.wait_for_timeout(50)
    guarded.services.tokens.revoke(token_id)
    expect(page).to_have_url(f"{guarded.url}/login?then=%2Fjobs%2F{job}", timeout=20_000)


@contextlib.contextmanager
def _other_site(text: str) -> Iterator[str]:
    """A site on another port that answers this page to everything."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}/"
        site.shutdown()


@in_browser
def test_a_form_of_another_site_is_refused(
    chromium: None, browser: Browser, guarded: RunningServer
) -> None:
    _, secret = _token(guarded)
    form = f"<form method=post action='{guarded.url}/login'><input name=token value='{secret}'></form>"
    text = form + "<script>document.forms[0].submit()</script>"
    page = browser.new_page()
    with _other_site(text) as evil, page.expect_response(f"{guarded.url}/login") as answer:
        page.goto(evil)
    assert answer.value.status == 403
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        ("null", "same-origin", 401),
        ("null", "cross-site", 403),
        ("null", None, 403),
        ("http://evil.example", "same-origin", 403),
    ],
)
def test_a_hidden_origin_needs_the_browsers_word(
    guarded: RunningServer, origin: str, site: str | None, status: int
) -> None:
    headers = {"Origin": origin} | ({"Sec-Fetch-Site": site} if site else {})
    answer = guarded.http.post("/login", data={"token": "collage_wrong"}, headers=headers)
    assert answer.status_code == status


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["urlencoded", "multipart"])
def test_a_large_form_is_not_read(guarded: RunningServer, kind: str) -> None:
    form, large = {"token": "collage_wrong", "then": "/"}, "x" * (1 << 20)
    if kind == "urlencoded":
        answer = guarded.http.post("/login", data=form | {"f": large})
    else:
        answer = guarded.http.post("/login", data=form, files={"f": large.encode()})
    assert answer.status_code == 413


@pytest.mark.slow
def test_the_longest_form_of_a_person_is_read(guarded: RunningServer) -> None:
    form = {"token": "ü" * 500, "then": "/" + "ü" * 1999}
    assert guarded.http.post("/login", data=form).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "htmx", "then"),
    [
        ("/compare?job=a&job=b", None, "/compare?job=a&job=b"),
        ("/?text=a%26b", "http://any/?text=c%26d", "/?text=c%26d"),
        ("/", "http://any/", "/"),
        ("/costs?target=" + "x" * 3000, None, "/costs"),
    ],
)
def test_the_sign_in_leads_back_to_the_query(
    guarded: RunningServer, asked: str, htmx: str | None, then: str
) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": htmx} if htmx else {}
    answer = guarded.http.get(asked, headers=headers)
    place = answer.headers["HX-Redirect" if htmx else "Location"]
    assert parse_qs(urlsplit(place).query)["then"] == [then]
    form = guarded.http.get(place).text
    assert f'name="then" value="{escape(then)}"' in form
    signed_in = guarded.http.post("/login", data={"token": _token(guarded)[1], "then": then})
    assert signed_in.status_code == 303 and signed_in.headers["Location"] == then
    guarded.http.cookies.clear()


@pytest.mark.slow
def test_pages_let_their_own_forms_say_where_they_come_from(guarded: RunningServer) -> None:
    assert guarded.http.get("/login").headers["Referrer-Policy"] == "same-origin"


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "status"), [({"CI": "true"}, 1), ({"CI": ""}, 0)])
def test_a_skipped_browser_test_fails_in_ci(
    tmp_path: Path, environment: dict[str, str], status: int
) -> None:
    marks = "pytestmark = [pytest.mark.browser, pytest.mark.skipif(True, reason='none here')]"
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n{marks}\ndef test_it():\n    pass\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.chromium", "-p", "no:schemathesis"]
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, *config, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == status, done.stdout

"""The health check asks this container's own server."""

from __future__ import annotations

import http.server
import threading

import pytest

from collage.service.health_check import main


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers 200 to each GET."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_server_is_asked_itself_whatever_proxy_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as server:
        monkeypatch.setenv("COLLAGE_PORT", str(server.server_port))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        assert main() == 0
        server.shutdown()
        thread.join()
    assert main() == 1

"""Names of a server: browsers send them in lower case, whatever people write."""

from __future__ import annotations

import pytest

from tests.service.conftest import StartServer


@pytest.mark.slow
@pytest.mark.parametrize("host", ["tuner.example.org", "Tuner.Example.org:8000"])
def test_names_of_hosts_are_compared_in_any_case(start_server: StartServer, host: str) -> None:
    server = start_server(allowed_hosts=("Tuner.example.org",))
    headers = {"Host": host}
    assert server.http.get("/v1/jobs", headers=headers).status_code == 200
    headers["Origin"] = f"http://{host.lower()}"
    assert server.http.post("/v1/jobs", headers=headers).status_code == 415
    headers["Origin"] = "http://evil.example.org"
    assert server.http.post("/v1/jobs", headers=headers).status_code == 403
    assert server.http.get("/v1/jobs", headers={"Host": "evil.example.org"}).status_code == 403

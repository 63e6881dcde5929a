"""Requests that nobody would write by hand: schemathesis over the OpenAPI document, with all its checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.conftest import StartServer

pytestmark = pytest.mark.slow

OUTPUT = Path(__file__).resolve().parents[1] / "output"

_EXAMPLES = os.environ.get("COLLAGE_FUZZ_EXAMPLES", "20")


def test_no_request_brings_the_server_down(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(max_upload_bytes=1 << 20, authentication="on")
    _, secret = server.services.tokens.create("fuzzer", ["admin"])
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{server.url}/openapi.json"),
        *("--checks", "all", "--max-examples", _EXAMPLES, "--seed", "1", "--workers", "2"),
        *("--exclude-operation-id", "watchJob", "--exclude-operation-id", "tune"),
        # It cannot write JSON lines; test_pages.py and tests/cost_db bring bad ones.
        *("--exclude-operation-id", "importCosts"),
        *("--header", f"Authorization: Bearer {secret}"),
        # A cancelled job is still there to be looked at; no schema tells a good target, option or cursor.
        *("--exclude-checks", "use_after_free,positive_data_acceptance"),
        *("--suppress-health-check", "all", "--request-timeout", "20", "--no-color"),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    OUTPUT.mkdir(exist_ok=True)
    (OUTPUT / "schemathesis.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.http.get("/readyz").status_code == 200

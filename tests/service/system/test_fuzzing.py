"""Generated requests: schemathesis over the OpenAPI document, with all its checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.conftest import StartServer

pytestmark = pytest.mark.slow

OUTPUT = Path(__file__).resolve().parents[2] / "output"

_EXAMPLES = os.environ.get("COLLAGE_FUZZ_EXAMPLES", "20")


# The first waits for its job, the second for a job's end: a runner must end them. The third takes any text,
# and refuses line by line what is bad in it, with 200: no text is of a wrong type.
_WAITING, _LINES = ("tune", "watchJob"), ("importCosts",)
_NO_TYPES = "negative_data_rejection"


def _only(names: tuple[str, ...], choice: str = "include") -> list[str]:
    return [word for name in names for word in (f"--{choice}-operation-id", name)]


@pytest.mark.parametrize(
    ("runners", "chosen", "unchecked"),
    [
        pytest.param(0, _only((*_WAITING, *_LINES), "exclude"), "", id="most"),
        pytest.param(1, _only(_WAITING), "", id="waiting"),
        pytest.param(0, _only(_LINES), _NO_TYPES, id="lines"),
    ],
)
def test_no_request_brings_the_server_down(
    start_server: StartServer, tmp_path: Path, runners: int, chosen: list[str], unchecked: str
) -> None:
    server = start_server(max_upload_bytes=1 << 20, authentication="on", runners=runners)
    _, secret = server.services.tokens.create("fuzzer", ["admin"])
    # One worker: two threads that parse Python at once fail at times on CPython 3.11.7 ("AST constructor recursion
    # depth mismatch", python/cpython issue 106905), and hypothesis parses the source of what it filters by.
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{server.url}/openapi.json"),
        *("--checks", "all", "--max-examples", _EXAMPLES, "--seed", "1", "--workers", "1"),
        *chosen,
        *("--header", f"Authorization: Bearer {secret}"),
        # A cancelled job is still there to be looked at; no schema describes a good target, option or cursor.
        *("--exclude-checks", f"use_after_free,positive_data_acceptance,{unchecked}".rstrip(",")),
        *("--suppress-health-check", "all", "--request-timeout", "20", "--no-color"),
    ]
    hooks = "tests.service.system.schemathesis_hooks"
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": hooks, "PYTHONPATH": str(OUTPUT.parents[1])}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=500,
        check=False,
    )
    OUTPUT.mkdir(exist_ok=True)
    (OUTPUT / f"schemathesis-{chosen[0][2:]}-{chosen[1]}.txt").write_text(
        done.stdout + done.stderr, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.http.get("/readyz").status_code == 200

"""Settings that cannot be meant are one line on stderr, before anything listens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TLS_KEY", "key", "COLLAGE_TLS_CERTIFICATE and COLLAGE_TLS_KEY need each other"),
        ("SERVER_CORES", "4096", "COLLAGE_SERVER_CORES is 4096, and of"),
    ],
)
def test_a_wrong_setting_is_one_line(name: str, value: str, said: str, tmp_path: Path) -> None:
    environment = {**os.environ, f"COLLAGE_{name}": value, "COLLAGE_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "collage", "serve"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"collage: {said}")

"""The hardware's digest: the same on one machine, different for what changes costs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collage.backends.machine.hardware import Gpu, hardware

_ROOT = Path(__file__).parents[3]
_PRINT = "from collage.backends.machine.hardware import hardware; print(hardware().digest)"


def _digest_elsewhere(**options: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PRINT],
        cwd=_ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
        **options,
    )
    return done.stdout.strip()


def test_another_process_finds_the_same() -> None:
    found = hardware(label=os.environ.get("COLLAGE_HOST_LABEL", ""))
    assert found.threads >= found.cores >= 1
    assert found.memory_gib >= 1
    assert found.last_level_cache_bytes >= 1 << 18
    assert _digest_elsewhere() == found.digest


def test_a_label_tells_alike_machines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLAGE_HOST_LABEL", raising=False)
    plain = hardware()
    monkeypatch.setenv("COLLAGE_HOST_LABEL", "rack-7")
    assert hardware().label == "rack-7"
    assert hardware().digest != plain.digest
    assert "rack-7" in hardware().describe()
    assert hardware(label="").digest == plain.digest


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_fewer_cores_are_other_hardware() -> None:
    one = {min(os.sched_getaffinity(0))}
    if one == os.sched_getaffinity(0):
        pytest.skip("there is one core only")
    script = f"import os; os.sched_setaffinity(0, {one!r}); {_PRINT}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=_ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.strip() != hardware().digest


def test_whatever_changes_costs_changes_the_digest() -> None:
    base = hardware()
    others = [
        replace(base, cpu="another"),
        replace(base, features=()),
        replace(base, threads=base.threads + 1),
        replace(base, gpus=(Gpu("H200", 143771, "570.1"),)),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5
    assert "H200 (driver 570.1)" in others[3].describe()

"""Other work beside a tuning, and the tables of what became of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.disturbed.load import KINDS, disturbed
from benchmarks.disturbed.rows import tables
from benchmarks.support.results import append_row, read_rows

SETTINGS = {"hardware": "2 threads, a machine", "targets": ["a", "b"], "time_limit_s": 60.0}


def _row(model: str, kind: str, speedup: float, number: int = 0) -> dict[str, object]:
    place = {"model": model, "kind": kind, "number": number}
    return {**SETTINGS, **place, "speedup": speedup, "seconds": 61.0}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_other_work_runs_inside_the_block_only(kind: str) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with disturbed(kind):
        time.sleep(0.1)
        inside = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
        spinners = [child for child in inside if "spawn_main" in " ".join(child.cmdline())]
        if kind == "one-core":
            assert len(spinners) == 1
        assert bool(spinners) == (kind != "none")
    assert not any(child.is_running() and child.status() != "zombie" for child in spinners)


def test_tables_count_what_is_too_slow_and_compare_with_quiet() -> None:
    rows = [
        {**_row("m", "none", 1.0), "seconds": 21.0, "warnings": ["ended early: a is far ahead"]},
        {**_row("m", "none", 1.0, 1), "warnings": ["sample inputs were seeded"]},
        *(_row("m", "bursts", speed, n) for n, speed in enumerate((0.96, 0.98))),
        {**SETTINGS, "model": "m", "kind": "bursts", "number": 2, "error": "broke", "seconds": 1.0},
    ]
    lines = tables(rows, SETTINGS).splitlines()
    quiet, bursts = (
        line.split(" | ") for line in lines if line.startswith(("| nothing", "| each core busy for 2"))
    )
    assert quiet[1:5] == ["2", "0 (0%)", "1.000", "1.000"]
    assert bursts[1:5] == ["2", "1 (50%)", "0.970", "0.970"]
    assert quiet[-3:-1] == ["1", "39"] and bursts[-3:-1] == ["0", ""]
    assert bursts[-1] == "1 |"


def test_rows_are_kept_and_those_of_other_settings_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert read_rows(file, SETTINGS) == []
    append_row(file, _row("m", "none", 1.0))
    append_row(file, _row("m", "bursts", 1.0))
    assert [row["kind"] for row in read_rows(file, SETTINGS)] == ["none", "bursts"]
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["speedup"] == 1.0
    with pytest.raises(SystemExit, match=r"time_limit_s 60.0.*give another --output"):
        read_rows(file, {**SETTINGS, "time_limit_s": 10.0})

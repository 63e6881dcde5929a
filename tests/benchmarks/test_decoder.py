"""The benchmark of a decoder generates the same tokens by each plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.decoder import __main__ as decoder


@pytest.mark.slow
def test_each_plan_generates_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "find_weights", lambda: None)
    words = ["--layers", "4", "--tokens", "2", "--rounds", "1", "--json", str(tmp_path / "rows.json")]
    monkeypatch.setattr(sys, "argv", ["decoder", *words])
    decoder.main()
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert len(rows) == 5 and all(row["same_tokens"] for row in rows)


def test_fewer_layers_than_partitions_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["decoder", "--layers", "2"])
    with pytest.raises(SystemExit):
        decoder.main()
    assert "--layers must be at least 4" in capsys.readouterr().err

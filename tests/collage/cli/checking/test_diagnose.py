"""`collage diagnose` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from collage.cli.app import app
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model

pytestmark = pytest.mark.slow


@pytest.fixture
def model_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(planted.install(tmp_path / "site")))
    onnx.save(long_model(20), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_fault_is_told_and_is_the_exit_status(model_path: Path) -> None:
    done = CliRunner().invoke(app, ["diagnose", str(model_path), "-t", "planted -fault=wrong -at=n5"])
    assert done.exit_code == 3, done.output
    assert "wrong: MatMul (n5)" in done.stdout and "expected" in done.stdout
    assert (model_path.parent / "m.diagnosis" / "culprit-0" / "issue.md").is_file()


def test_a_right_target_ends_with_zero_and_json(model_path: Path) -> None:
    words = ["diagnose", str(model_path), "-t", "planted", "--json", "--threads", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["faults"]["culprits"] == []

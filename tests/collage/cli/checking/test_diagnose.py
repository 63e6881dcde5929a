"""`collage diagnose` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from collage.cli.app import app
from collage.partitioner.errors import BadInputError
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


def test_a_target_is_not_called_right_where_not_all_ran(model_path: Path) -> None:
    base = ["diagnose", str(model_path), "-t"]
    done = CliRunner().invoke(app, [*base, "planted -refuses=Neg", "--trials", "2"])
    assert done.exit_code == 4 and "is right" not in done.stdout, done.output
    assert "were not tried; allow more trials (--trials)" in done.stdout
    kinds = "MatMul,Tanh,Mul,Neg,Add"
    done = CliRunner().invoke(app, [*base, f"planted -refuses={kinds}"])
    assert done.exit_code == 4 and "is right" not in done.stdout, done.output
    assert "takes no node of the model" in done.stdout


def test_why_there_are_no_blocks_is_told(model_path: Path) -> None:
    target = "planted -fault=small -least=20"
    words = ["diagnose", str(model_path), "-t", target, "--threads", "1", "--against", "onnxruntime"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "not in blocks: " in done.stdout, done.output
    assert "no region is slower" not in done.stdout


@pytest.mark.parametrize("name", ["none.onnx", "."])
def test_a_mistyped_model_leaves_no_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["diagnose", name, "-t", "onnxruntime"])
    assert isinstance(done.exception, BadInputError) and not list(tmp_path.iterdir())

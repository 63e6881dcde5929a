"""`collage costs learned`: how well costs of a new model are predicted on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collage.backends.machine.hardware import hardware
from collage.cli import queries, tables
from collage.cost_db.costs.observations import ObservationStore
from collage.cost_db.database import CostDatabase
from collage.partitioner.errors import BadInputError
from tests.collage.learning.stated import observed


def _database(folder: Path, models: int) -> str:
    url = f"sqlite:///{folder / 'c.db'}"
    database = CostDatabase(url)
    rows = [replace(row, hardware=hardware().digest) for row in observed(models)]
    ObservationStore(database.connections).keep(rows)
    database.close()
    return url


@pytest.mark.slow
def test_errors_of_targets_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    found = queries.learned(_database(tmp_path, 9))
    assert found["models"] == 9
    assert [row["target"] for row in found["targets"]] == ["even", "mixed", "slow"]
    tables.show_learned(found)
    said = capsys.readouterr().out
    assert "a factor of 1." in said
    assert "351 observations of 9 models" in said


def test_few_models_are_told_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = queries.learned(_database(tmp_path, 1))
    assert found["targets"] == []
    tables.show_learned(found)
    said = " ".join(capsys.readouterr().out.split())
    assert "of 1 model; a target is predicted once 9 models ran on it here" in said


def test_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = _database(tmp_path, 1)
    monkeypatch.setattr(queries, "learner_is_installed", lambda: False)
    with pytest.raises(BadInputError, match=r"collage-tuner\[learn\]"):
        queries.learned(url)

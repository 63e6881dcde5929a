"""The folder of a diagnosis, and what a report leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collage.diagnosis.output import make_output, output_beside
from collage.diagnosis.untried import untried
from collage.partitioner.errors import BadInputError


def test_only_what_a_diagnosis_writes_is_removed(tmp_path: Path) -> None:
    for name in ("culprit-0", "slow-12", "culprit-mine", "slow"):
        (tmp_path / name / "inside").mkdir(parents=True)
    for name in ("report.json", "error-by-depth.svg", "notes.json"):
        (tmp_path / name).touch()
    make_output(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"culprit-mine", "slow", "notes.json"}


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.touch()
    with pytest.raises(BadInputError, match=f"{path}.*give another output folder"):
        make_output(path)


def test_a_path_without_a_name_is_no_model() -> None:
    assert output_beside(Path("a/m.onnx")) == Path("a/m.diagnosis")
    with pytest.raises(BadInputError, match="no model file"):
        output_beside(Path())


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([], "mnn takes no node"),
        (["right", "not tried"], "1 of 2 regions was not tried"),
        (["wrong", "not tried", "not tried"], "2 of 3 regions were not tried"),
        (["right", "right"], None),
    ],
)
def test_regions_that_did_not_run_are_told(outcomes: list[str], said: str | None) -> None:
    regions = [{"nodes": 1, "outcome": outcome} for outcome in outcomes]
    report: dict[str, Any] = {"target": "mnn", "faults": {"regions": regions}}
    told = untried(report)
    assert (told is None) if said is None else (told is not None and said in told)

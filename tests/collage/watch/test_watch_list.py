"""The list of watched artifacts, reports of results, and comparison with stored times."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from collage.partitioner.errors import BadInputError
from collage.watch import reports, watch_list
from collage.watch.run import is_regression
from collage.watch.stored import by_yardstick
from collage.watch.verdicts import baseline_of
from collage.watch.watch_list import WatchList


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that are taken for an artifact."""
    monkeypatch.setattr(watch_list, "read_report", lambda path: {})
    path = tmp_path / "net.collage.onnx"
    path.write_bytes(b"model")
    path.with_name("net.collage.onnx.weights").write_bytes(b"weights")
    return path


def test_a_copy_is_watched_with_its_weights(artifact: Path, tmp_path: Path) -> None:
    watched = WatchList(tmp_path / "watch").add(artifact)
    artifact.unlink()
    assert watched.name == "net" and watched.artifact.read_bytes() == b"model"
    assert watched.artifact.with_name("net.collage.onnx.weights").read_bytes() == b"weights"
    assert WatchList(tmp_path / "watch").list() == (watched,)


def test_history_stays_when_an_artifact_is_added_again(artifact: Path, tmp_path: Path) -> None:
    watched = WatchList(tmp_path / "watch").add(artifact)
    watched.note({"at": "now"})
    with (watched.artifact.parent / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"at": "cut')
    assert WatchList(tmp_path / "watch").add(artifact).history == [{"at": "now"}]


def test_what_is_removed_is_gone_and_unknown_names_are_told(artifact: Path, tmp_path: Path) -> None:
    watching = WatchList(tmp_path / "watch")
    watching.add(artifact)
    with pytest.raises(BadInputError, match="'other' is watched; those are: net"):
        watching.remove("other")
    watching.remove("net")
    assert watching.list() == ()


def test_a_name_stays_in_the_folder(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--name"):
        WatchList(tmp_path / "watch").add(artifact, "../elsewhere")


def test_an_artifact_is_known_by_its_bytes_and_weights(artifact: Path, tmp_path: Path) -> None:
    first = WatchList(tmp_path / "watch").add(artifact).digest
    assert WatchList(tmp_path / "watch").add(artifact).digest == first
    artifact.with_name("net.collage.onnx.weights").write_bytes(b"others")
    assert WatchList(tmp_path / "watch").add(artifact).digest != first


def test_a_name_with_signs_of_a_pattern_is_copied(artifact: Path, tmp_path: Path) -> None:
    odd = artifact.rename(artifact.with_name("net[1].onnx"))
    watched = WatchList(tmp_path / "watch").add(odd, "net")
    assert watched.artifact.read_bytes() == b"model"


def test_the_baseline_is_the_last_that_was_no_regression() -> None:
    verdicts = ("same", "faster", "slower", "wrong")
    records = [{"verdict": verdict} for verdict in verdicts]
    assert baseline_of(records) is records[1]
    assert baseline_of([{"at": "before verdicts were kept"}]) is not None
    assert baseline_of(records[2:]) is None


BLOCK = {
    "nodes": ["n1", "n2"],
    "operators": "Conv Relu",
    "target": "mnn",
    "ratio": 1.2,
    "interval": [1.1, 1.3],
}


def result(verdict: str, **more: Any) -> dict[str, Any]:
    base = {"name": "a|b", "environment": "/new/python", "reason": "it <is> so", "blocks": []}
    return {**base, "verdict": verdict, "ratio": 1.1, "interval": [1.05, 1.15], **more}


def test_junit_has_a_failure_for_each_regression() -> None:
    results = [result("slower", blocks=[BLOCK]), result("same"), result("wrong", ratio=None)]
    suite = ElementTree.fromstring(reports.junit(results))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    failure = suite.find("testcase/failure")
    assert failure is not None and "1.100 [1.050, 1.150]" in (failure.get("message") or "")
    assert "Conv Relu (n1 … n2) on mnn" in (failure.text or "")


def test_markdown_is_a_table_and_what_changed() -> None:
    text = reports.markdown([result("slower", blocks=[BLOCK])])
    assert "| a\\|b | /new/python | slower | 1.100 [1.050, 1.150] | it <is> so |" in text
    assert "- Conv Relu (n1 … n2) on mnn: 1.200" in text


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("slower", True), ("wrong", True), ("failed", True), ("faster", False), ("same", False)],
)
def test_slower_wrong_and_failed_are_regressions(verdict: str, expected: bool) -> None:
    assert is_regression([result(verdict)]) is expected


def test_stored_times_compare_by_the_yardstick() -> None:
    old = [10.0, 10.1, 9.9, 10.0, 10.05]
    ratio = by_yardstick([12.0, 12.1, 11.9, 12.0, 12.05], old)
    assert ratio is not None and 1.18 < ratio.low < 1.2 < ratio.high < 1.22
    assert by_yardstick([12.0], old) is None

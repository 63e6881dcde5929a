"""A watched artifact in two environments: slower, wrong, crashed, or the same."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collage.backends.sandbox.run import ChildLimits
from collage.cli.app import app
from collage.environments import environment, interleaved
from collage.watch.run import run_watch
from collage.watch.watch_list import Watched, WatchList
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model
from tests.collage.environments.wrappers import interpreter
from tests.tuning import tuned

pytestmark = pytest.mark.slow


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchList:
    """One artifact whose node n7 takes 3 ms."""
    monkeypatch.syspath_prepend(str(planted.install(tmp_path / "site")))
    target = "planted -slow=n7 -slow_us=3000"
    artifact = tuned(long_model(20), [target], tmp_path, threads=1, strategy="single")
    watching = WatchList(tmp_path / "watch")
    watching.add(artifact.path, "net")
    return watching


def other(tmp_path: Path, **variables: str) -> Path:
    return interpreter(tmp_path, "other", variables, [tmp_path / "site"])


def only(watching: WatchList) -> Watched:
    (watched,) = watching.list()
    return watched


def test_a_slower_version_is_found_with_its_block(watching: WatchList, tmp_path: Path) -> None:
    python = other(tmp_path, **{planted.ENVIRONMENT: "60"})
    (result,) = run_watch(watching, [python])
    assert result["verdict"] == "slower" and result["interval"][0] > 1.2
    assert result["versions"]["planted"] == ["1.0", "1.60"]
    assert any("n7" in block["nodes"] for block in result["blocks"])
    assert len(only(watching).history) == 1


def test_a_wrong_version_is_found(watching: WatchList, tmp_path: Path) -> None:
    (result,) = run_watch(watching, [other(tmp_path, PLANTED_WRONG="n5")])
    assert result["verdict"] == "wrong" and "exceeds" in result["reason"]


def test_what_is_wrong_here_is_found_too(
    watching: WatchList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = partial(ChildLimits, environment={planted.WRONG: "n5"})
    monkeypatch.setattr(interleaved, "ChildLimits", limits)
    (result,) = run_watch(watching, [other(tmp_path, **{planted.WRONG: ""})])
    assert result["verdict"] == "wrong" and "its error here is" in result["reason"]
    assert [record["verdict"] for record in only(watching).history] == ["wrong"]


def test_a_version_that_crashes_is_found(watching: WatchList, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            *("watch", "run", "--folder", str(tmp_path / "watch")),
            *("--environment", str(other(tmp_path, PLANTED_CRASH="1"))),
            *("--junit", str(tmp_path / "j.xml"), "--markdown", str(tmp_path / "r.md"), "--json"),
        ],
    )
    assert done.exit_code == 3, done.output
    (result,) = json.loads(done.stdout)
    assert result["verdict"] == "failed" and "signal 6" in result["reason"]
    assert 'failures="1"' in (tmp_path / "j.xml").read_text(encoding="utf-8")
    assert "| failed |" in (tmp_path / "r.md").read_text(encoding="utf-8")


def test_nothing_is_measured_while_nothing_in_the_key_changed(
    watching: WatchList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = run_watch(watching)
    assert first["reason"] == "measured for the first time"
    (second,) = run_watch(watching)
    assert "nothing in its key changed" in second["reason"] and len(only(watching).history) == 1
    changed = {planted.ENVIRONMENT: "200"}
    monkeypatch.setenv(planted.ENVIRONMENT, "200")
    # Children do not have the owner's variables.
    for module in (environment, interleaved):
        monkeypatch.setattr(module, "ChildLimits", partial(ChildLimits, environment=changed))
    (third,) = run_watch(watching)
    assert "planted changed" in third["reason"] and len(only(watching).history) == 2
    assert third["verdict"] == "slower" and third["ratio"] > 1.5


def test_a_regression_is_told_again_and_is_no_baseline(
    watching: WatchList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for module in (environment, interleaved):
            limits = partial(ChildLimits, environment={planted.WRONG: "n5"})
            patched.setattr(module, "ChildLimits", limits)
        (first,) = run_watch(watching)
        (second,) = run_watch(watching)
    assert first["verdict"] == second["verdict"] == "wrong"
    assert "nothing in its key changed" in second["reason"] and "exceeds" in second["reason"]
    assert len(only(watching).history) == 1
    (third,) = run_watch(watching, again=True)
    assert third["verdict"] == "same" and "no earlier" in third["reason"]


def test_another_artifact_of_the_same_name_is_measured(watching: WatchList, tmp_path: Path) -> None:
    run_watch(watching)
    folder = tmp_path / "more"
    folder.mkdir()
    other_one = tuned(long_model(10), ["planted"], folder, threads=1, strategy="single")
    watching.add(other_one.path, "net")
    (result,) = run_watch(watching)
    assert result["reason"] == "measured for the first time" and len(only(watching).history) == 2


def test_blocks_that_are_refused_hide_no_change_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(planted.install(tmp_path / "site")))
    target = "planted -slow=n7 -slow_us=3000 -fault=small -least=20"
    artifact = tuned(long_model(20), [target], tmp_path, threads=1, strategy="single")
    watching = WatchList(tmp_path / "watch")
    watching.add(artifact.path, "net")
    (result,) = run_watch(watching, [other(tmp_path, **{planted.ENVIRONMENT: "60"})])
    assert result["verdict"] == "slower" and result["interval"][0] > 1.2
    assert "not in blocks: " in result["reason"] and "no kernel here" in result["reason"]


def test_the_commands_add_list_and_remove(watching: WatchList, tmp_path: Path) -> None:
    folder = ["--folder", str(tmp_path / "again")]
    artifact = str(only(watching).artifact)
    for words, said in (
        (["add", artifact, "--name", "mine"], "watching mine"),
        (["list"], "mine: not measured yet"),
        (["remove", "mine"], "no longer watching mine"),
        (["run"], ""),
    ):
        done = CliRunner().invoke(app, ["watch", *words, *folder])
        assert done.exit_code == 0 and said in done.stdout, done.output

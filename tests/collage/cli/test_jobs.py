"""`collage jobs` against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collage.cli.app import app
from collage.client.answers import ServerError
from collage.client.client import Client
from collage.partitioner.errors import BadInputError
from tests.service.conftest import RunningServer, server, start_server  # noqa: F401 - fixtures


@pytest.fixture
def engine() -> str:
    return "sqlite"


def _run(url: str, *words: str) -> str:
    done = CliRunner().invoke(app, ["jobs", *words, "--server", url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout  # the server of the test logs on stderr


@pytest.mark.slow
def test_jobs_are_listed_labeled_rerun_and_removed(
    server: RunningServer,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    model = tmp_path / "resnet.onnx"
    model.write_bytes(b"model")
    with Client(server.url) as client:
        made = client.create_job(model, ["onnxruntime"], {"seed": 3}, labels=["eu"], note="first")
        assert made.data["note"] == "first" and made.data["webhook"] is None
    _run(server.url, "label", made.id, "--label", "nightly", "--label", "eu")
    line = _run(server.url, "list", "--label", "nightly", "--label", "eu", "--name", "RESNET")
    assert line.startswith(made.id) and "queued" in line and "#eu #nightly" in line
    assert _run(server.url, "list", "--label", "other") == ""
    assert _run(server.url, "list", "--kind", "tune") and not _run(
        server.url, "list", "--kind", "watch"
    )
    again = _run(server.url, "rerun", made.id, "-t", "openvino", "--option", "seed=null", "--note", "x")
    (new,) = json.loads(_run(server.url, "list", "--limit", "1", "--json"))
    assert again.startswith(new["id"]) and new["rerun_of"] == made.id
    assert (new["targets"], new["options"], new["labels"]) == (["openvino"], {}, ["eu", "nightly"])
    assert "cancelled" in _run(server.url, "cancel", made.id)
    assert "cancelled" in _run(server.url, "cancel", made.id)
    assert _run(server.url, "remove", made.id) == f"removed {made.id}\n"
    with Client(server.url) as client:
        assert [job.id for job in client.jobs()] == [new["id"]]
        with pytest.raises(BadInputError, match="there is no job"):
            client.remove(made.id)
        with pytest.raises(ServerError, match="cancelled only"):
            client.remove(new["id"])
        with pytest.raises(BadInputError, match=r"options\.seed"):
            client.rerun(new["id"], options={"seed": -1})


def test_bad_usage_says_what_to_write() -> None:
    for words, said in (
        (["label", "x"], "give --label or --note"),
        (["rerun", "x", "--option", "fresh"], "name=value"),
    ):
        with pytest.raises(BadInputError, match=said):
            CliRunner().invoke(app, ["jobs", *words, "--server", "http://x"], catch_exceptions=False)

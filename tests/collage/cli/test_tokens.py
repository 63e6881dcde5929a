"""`collage token`: a secret is shown once, never listed, and can be revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collage.cli.app import app
from collage.cost_db.database import CostDatabase
from collage.cost_db.tokens import TokenStore
from collage.partitioner.errors import BadInputError


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'costs.db'}"


def _run(*words: str) -> str:
    done = CliRunner().invoke(app, ["token", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_token_lives_until_it_is_revoked(url: str) -> None:
    words = ["--scope", "read, tune", "--name", "ci", "--expires", "30d", "--active-jobs", "3"]
    secret = _run("create", *words, "--database", url).strip()
    store = TokenStore(CostDatabase(url))
    token = store.verify(secret)
    assert token is not None and token.scopes == {"read", "tune"} and token.quotas.active_jobs == 3
    listed = _run("list", "--database", url)
    assert "valid until" in listed and "ci" in listed and secret not in listed
    (shown,) = json.loads(_run("list", "--json", "--database", url))
    assert shown["id"] == token.id and secret not in json.dumps(shown)
    _run("revoke", token.id, "--database", url)
    assert store.verify(secret) is None
    assert "revoked" in _run("list", "--database", url)
    with pytest.raises(BadInputError, match="no valid token"):
        _run("revoke", token.id, "--database", url)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--scope", "everything"],
        ["--scope", ""],
        ["--scope", "read", "--expires", "soon"],
        ["--scope", "read", "--expires", "2020-01-01T00:00:00Z"],
        ["--scope", "read", "--active-jobs", "-1"],
    ],
)
def test_bad_wishes_are_refused(url: str, words: list[str]) -> None:
    with pytest.raises(BadInputError):
        _run("create", *words, "--database", url)

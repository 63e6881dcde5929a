"""Every secret that tests make, and where logs show one: `pytest` fails at its end if any does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collage.cost_db.tokens import Token, TokenStore

_LOG_NAMES = ("*.log", "*.txt", "*.err", "*.out", "*stderr*", "*stdout*")
_MOST_BYTES = 64 << 20


class SecretsMade:
    """The secrets of one test session."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self.leaks: list[str] = []

    def note(self, secret: str) -> None:
        """Look for this one from now on."""
        assert len(secret) >= 12, "too short to look for"
        self.secrets.add(secret)

    def look(self, where: str, text: str) -> None:
        """Remember a text of a log that shows a secret."""
        # A token's random part alone is as bad as the whole.
        if any(secret in text or secret.split("_", 2)[-1] in text for secret in self.secrets):
            self.leaks.append(where)

    def look_into_files(self, folder: Path) -> None:
        """The same for all files below a folder that may be logs."""
        for pattern in _LOG_NAMES:
            for path in folder.rglob(pattern):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    self.look(str(path), path.read_text(encoding="utf-8", errors="replace"))


MADE = SecretsMade()


@pytest.fixture(scope="session", autouse=True)
def no_secret_in_any_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Notes each token that a test makes, and at the end looks into all that was logged."""
    create = TokenStore.create

    def noted(self: TokenStore, *given: Any, **named: Any) -> tuple[Token, str]:
        token, secret = create(self, *given, **named)
        MADE.note(secret)
        return token, secret

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenStore, "create", noted)
        yield
    MADE.look_into_files(tmp_path_factory.getbasetemp())
    assert not MADE.leaks, f"secrets are shown by {MADE.leaks}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What a test wrote to its standard streams and to `logging`."""
    MADE.look(report.nodeid, "\n".join(text for _, text in report.sections))

"""What is said of an artifact in an environment, and which measurements later ones are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Verdict = Literal["same", "faster", "slower", "wrong", "failed"]
REGRESSIONS: tuple[Verdict, ...] = ("slower", "wrong", "failed")


def baseline_of(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last measurement that showed no regression: what a new one is compared with."""
    return next((r for r in reversed(records) if r.get("verdict") not in REGRESSIONS), None)

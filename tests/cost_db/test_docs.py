"""The examples of docs/cost-database.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collage.cost_db.costs.queries import CostFilter

PAGE = Path(__file__).parents[2] / "docs" / "cost-database.md"


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLAGE_DATABASE_URL", f"sqlite:///{tmp_path / 'costs.db'}")
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, object] = {}
    exec(example, scope)
    scope["database"].close()  # type: ignore[attr-defined]


def test_every_filter_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in CostFilter.__dataclass_fields__)

"""Normalized real models, made once per test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests import models


@pytest.fixture(scope="session")
def normalized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Gives the normalized model of a name in `tests.models`."""
    made: dict[str, Path] = {}

    def open_model(name: str) -> Model:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = normalize(models.model_path(name), folder, models.default_dims(name)).path
        return Model.open(made[name])

    return open_model

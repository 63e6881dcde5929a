"""Several instances of a model in one process, and artifacts whose targets are missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from collage.backends.contract import Unavailable
from collage.backends.registry import backends
from collage.partitioner.errors import BadInputError
from collage.serving.engine import open_engine
from tests.collage.deploy.test_package import artifact, package

__all__ = ["artifact", "package"]

pytestmark = pytest.mark.slow


@pytest.fixture(params=["package", "artifact"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_instances_of_four_runtimes_answer_right_at_once(path: Path) -> None:
    engine = open_engine(path, 2)
    try:
        names = [port.name for port in engine.outputs]
        feeds = [engine.sample(seed, 1) for seed in range(8)]
        right = [engine.infer(feed, names) for feed in feeds]
        assert len({made[0].tobytes() for made in right}) == 8  # so that a wrong answer is seen
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(lambda i: engine.infer(feeds[i % 8], names), range(160)))
    finally:
        engine.close()
    for number, outputs in enumerate(made):
        for one, other in zip(outputs, right[number % 8], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def without_openvino() -> Iterator[None]:
    with mock.patch.object(
        type(backends()["openvino"]), "probe", lambda _: Unavailable("not installed", "pip")
    ):
        yield


def test_missing_target_of_an_artifact_needs_fallback(artifact: Path, without_openvino: None) -> None:
    with pytest.raises(
        BadInputError,
        match=r"partition 1 needs a target .*fallback='onnxruntime'\), which is --fallback here",
    ):
        open_engine(artifact, 1)
    engine = open_engine(artifact, 1, fallback=True)
    try:
        assert "partition 1 on onnxruntime, since" in engine.about
        assert engine.infer(engine.sample(0, 1), [engine.outputs[0].name])
    finally:
        engine.close()

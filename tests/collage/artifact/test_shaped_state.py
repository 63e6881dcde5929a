"""A decoder as an artifact with free dimensions, driven by a session that keeps its cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from tests.collage.artifact.shaped_artifacts import shaped_artifact
from tests.decoders import Decoder, seeded, write_decoder

pytestmark = pytest.mark.slow
_DIMS = {"batch": "1,2", "length": "1,6", "past": "0,12"}
_BOTH = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes: short ones, as decode is, on one runtime, and others on two."""
    folder = tmp_path_factory.mktemp("decoder")
    path = write_decoder(folder / "decoder.onnx", Decoder(), seeded())
    classes = [(8, ("onnxruntime",)), (None, _BOTH)]
    return shaped_artifact(onnx.load(path), folder, _DIMS, classes, hot=_BOTH, hot_from=3)


def _wanted(path: Path, ids: np.ndarray, count: int) -> list[np.ndarray]:
    """The tokens of each step; the whole sequence is computed anew each time."""
    session = onnxruntime.InferenceSession(path)
    past = {
        v.name: np.zeros([len(ids), v.shape[1], 0, v.shape[3]], np.float32)
        for v in session.get_inputs()[1:]
    }
    tokens = []
    for _ in range(count):
        (logits,) = session.run(["logits"], {"input_ids": ids, **past})
        tokens.append(logits.argmax(axis=1))
        ids = np.concatenate([ids, tokens[-1][:, None]], axis=1)
    return tokens


@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_are_those_of_the_whole_sequence(artifact: Path, batch: int) -> None:
    with collage.load(artifact, cache_dir=False, threads=1) as session:
        bound = session.bind_output_to_input("present.*", "past.*")
        assert len(bound) == 4
        for prompt in ([3, 4, 5, 6], [9, 8], [1], [3, 4, 5, 6], [3, 4, 5, 6], [7, 7, 7, 7, 7, 7]):
            session.reset_state()
            ids = np.array([prompt, prompt[::-1]][:batch])
            wanted = _wanted(artifact.with_name("decoder.onnx"), ids, 7)
            for tokens in wanted:
                (logits,) = session.run(None, {"input_ids": ids})
                np.testing.assert_array_equal(logits.argmax(axis=1), tokens)
                ids = tokens[:, None]

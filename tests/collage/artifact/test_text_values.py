"""Text in and out, and outputs whose shape depends on the sample, by way of .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.cli.run import run_once
from collage.model.sample_inputs import read_samples
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec
from tests.tuning import tuned

_MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (string[3] text, float[4] x) => (string[3] y, int64[1, N] found) {
    y = StringConcat(text, text)
    found = NonZero(x)
}"""


def test_text_samples_are_characters_in_the_file(tmp_path: Path) -> None:
    spec = TensorSpec("text", "object", (3,))
    np.savez(tmp_path / "x.npz", text=np.array([["a", "bc", ""], ["d", "e", "f"]]))
    first, second = read_samples(tmp_path / "x.npz", [spec])
    assert first["text"].dtype == object
    assert first["text"].tolist() == ["a", "bc", ""] and second["text"].tolist() == ["d", "e", "f"]
    np.savez(tmp_path / "numbers.npz", text=np.zeros(3, np.float32))
    with pytest.raises(BadInputError, match="'text' must be text"):
        read_samples(tmp_path / "numbers.npz", [spec])


@pytest.mark.slow
def test_a_model_of_text_is_tuned_and_run_on_files(tmp_path: Path) -> None:
    given = tmp_path / "x.npz"
    x = np.array([[1, 0, 2, 0], [0, 0, 0, 5]], np.float32)
    np.savez(given, text=np.array([["a", "bc", ""], ["d", "e", "f"]]), x=x)
    made = tuned(onnx.parser.parse_model(_MODEL), ["onnxruntime"], tmp_path, inputs=given)
    run_once(made.path, given, tmp_path / "y", None, {}, lambda line: None)
    with np.load(tmp_path / "y", allow_pickle=False) as stored:
        assert stored["y"].tolist() == [["aa", "bcbc", ""], ["dd", "ee", "ff"]]
        assert stored["found.0"].tolist() == [[0, 2]] and stored["found.1"].tolist() == [[3]]

"""Scripts that reproduce a fault judge as a trial does: each output by itself, infinities and all types included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from collage.backends.numerics.comparison import METRICS, Expected, Ranged, output_error
from collage.diagnosis.reproducing.reproducer import run_script, types_of, write_values
from collage.diagnosis.reproducing.scripts import comparing_script
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec

Values = Mapping[str, Any]


def status(folder: Path, body: str, given: Values, wanted: Mapping[str, Expected], **more: Any) -> int:
    """The exit status of a script for a model that ONNX Runtime computes; 0 says that it is right."""
    graph = f'<ir_version: 10, opset_import: ["" : 18]> {body}'
    onnx.save(onnx.parser.parse_model(graph), folder / "model.onnx")
    specs = {kind: [TensorSpec(n, "", None) for n in v] for kind, v in (("i", given), ("o", wanted))}
    write_values(folder, "inputs", specs["i"], [given])
    write_values(folder, "expected", specs["o"], [wanted])
    asked: dict[str, Any] = {"metric": "max", "tolerance": 1e-3, "samples": 1, "runs": 2, **more}
    text = comparing_script(
        title="It is wrong",
        target=Target.parse("onnxruntime -opt=none"),
        threads=1,
        inputs=types_of(specs["i"], given),
        outputs=types_of(specs["o"], wanted),
        ties=any(isinstance(value, Ranged) for value in wanted.values()),
        **asked,
    )
    (folder / "reproduce.py").write_text(text, encoding="utf-8")
    return run_script(folder / "reproduce.py")


TOP_K = "g (float[6] x, int64[1] k) => (float[3] v, int64[3] i) { v, i = TopK(x, k) }"
LARGE = {"x": np.array([0, 5, 1, 4, 2, 3], np.float32), "k": np.array([3], np.int64)}
BEST = np.array([5, 4, 3], np.float32)


@pytest.mark.parametrize(
    ("values", "places", "expected"),
    [
        (BEST * np.float32(1.0001), [1, 3, 5], 0),
        (BEST * np.float32(1.1), [1, 3, 5], 1),
        (BEST, [1, 3, 4], 1),
    ],
)
def test_each_output_is_judged_by_its_type(
    tmp_path: Path, values: np.ndarray, places: list[int], expected: int
) -> None:
    wanted = {"v": values, "i": np.array(places, np.int64)}
    assert status(tmp_path, TOP_K, LARGE, wanted) == expected


def test_elements_that_rounding_decides_may_be_either(tmp_path: Path) -> None:
    places = [np.array(each, np.int64) for each in ([1, 3, 4], [1, 3, 4], [1, 3, 5])]
    assert status(tmp_path, TOP_K, LARGE, {"v": BEST, "i": Ranged(*places)}) == 0
    places = [np.array(each, np.int64) for each in ([1, 2, 4], [1, 2, 4], [1, 2, 5])]
    assert status(tmp_path, TOP_K, LARGE, {"v": BEST, "i": Ranged(*places)}) == 1


@pytest.mark.parametrize(
    ("made", "expected"), [(1.5, 0), (2.0005, 0), (2.1, 1), (0.9995, 0), (np.nan, 1)]
)
def test_numbers_may_be_near_the_bounds_of_ties(tmp_path: Path, made: float, expected: int) -> None:
    given = {"x": np.array([made], np.float32)}
    wanted = Ranged(*(np.array([each], np.float32) for each in (1, 1, 2)))
    body = "g (float[1] x) => (float[1] y) { y = Identity(x) }"
    assert (output_error("max", [given["x"]], [wanted]) <= 1e-3) == (expected == 0)
    assert status(tmp_path, body, given, {"y": wanted}) == expected


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([-np.inf, 0.0, 3.0, np.nan], 0),
        ([-np.inf, 9.0, 3.0, np.nan], 1),
        ([-1.0, 0.0, 3.0, np.nan], 1),
        ([-np.inf, 0.0, 3.0, 1.0], 1),
        ([-np.inf, 0.0, 3.0, -np.inf], 1),
        ([np.inf, 0.0, 3.0, np.nan], 1),
        ([np.nan, -np.inf, 3.0, np.nan], 0),
    ],
)
def test_infinities_and_nan_hide_nothing(
    tmp_path: Path, metric: str, wanted: list[float], expected: int
) -> None:
    """The logarithms of 0, 1, e³ and -1."""
    given = {"x": np.array([0, 1, np.exp(3), -1], np.float32)}
    body = "g (float[4] x) => (float[4] y) { y = Log(x) }"
    told = {"y": np.array(wanted, np.float32)}
    assert status(tmp_path, body, given, told, metric=metric) == expected
    with np.errstate(divide="ignore", invalid="ignore"):
        error = output_error(metric, [np.log(given["x"])], [told["y"]])
    assert (error <= 1e-3) == (expected == 0)


def test_infinities_hide_no_other_largest_element(tmp_path: Path) -> None:
    """The logarithms of 0, 0.1 and 0.5 are all below 0."""
    given = {"x": np.array([0, 0.1, 0.5], np.float32)}
    body = "g (float[3] x) => (float[3] y) { y = Log(x) }"
    told = {"y": np.array([-np.inf, -0.7, -2.3], np.float32)}
    assert output_error("top1", [np.array([-np.inf, -2.3, -0.7], np.float32)], [told["y"]]) == 1.0
    assert status(tmp_path, body, given, told, metric="top1") == 1


@pytest.mark.parametrize("metric", METRICS)
def test_bytes_are_numbers_and_words_are_labels(tmp_path: Path, metric: str) -> None:
    body = (
        "g (uint8[2] x, string[2] s) => (uint8[2] y, string[2] t) { y = Identity(x) t = Identity(s) }"
    )
    words = np.array(["a", "b"], object)
    given = {"x": np.array([0, 255], np.uint8), "s": words}
    near = {"y": np.array([0, 254], np.uint8), "t": words}
    assert status(tmp_path, body, given, near, metric=metric, tolerance=0.01) == 0
    other = {"y": near["y"], "t": np.array(["a", "c"], object)}
    assert status(tmp_path, body, given, other, metric=metric, tolerance=0.01) == 1


def test_types_that_numpy_lacks_are_kept(tmp_path: Path) -> None:
    """ONNX Runtime itself takes no such array, so only what the script reads is looked at."""
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    folder, specs = tmp_path, [TensorSpec("x", "bfloat16", (2,))]
    write_values(folder, "inputs", specs, [{"x": values}])
    text = comparing_script(
        title="It is wrong",
        target=Target.parse("onnxruntime"),
        threads=1,
        inputs=types_of(specs, {"x": values}),
        outputs={},
        samples=0,
        runs=1,
        tolerance=1e-3,
        metric="max",
        ties=False,
    )
    shown = text.replace("open_model(Path(", "str(Path(").replace(
        "sys.exit(int(wrong))", 'sys.exit(int(values("inputs", INPUTS, 0)[0].sum() * -2))'
    )
    (folder / "reproduce.py").write_text(shown, encoding="utf-8")
    assert "import ml_dtypes" in shown and run_script(folder / "reproduce.py") == 1

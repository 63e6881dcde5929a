"""Elements that rounding alone decides: found where the model chooses between equals, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.backends.numerics.comparison import Ranged, output_error
from collage.model.numeric_ties import find_choices
from collage.model.reference import Reference, ingest
from collage.partitioner.errors import NoPlanError
from tests.tuning import tuned

_SCORES, _TWINS = 64, 16
_CHOOSING = """<ir_version: 10, opset_import: ["" : 18]>
g (float[1, 256] x) => (float[1, 80] top, int64[1, 80] place, float[1, 80] chosen) {
    a = MatMul(x, w)
    moved = Gather <axis = 1> (x, order)
    b = MatMul(moved, twins)
    scores = Concat <axis = 1> (a, b)
    shares = Sigmoid(scores)
    top, place = TopK(shares, k)
    chosen = GatherElements <axis = 1> (other, place)
}"""


def choosing_model() -> onnx.ModelProto:
    """Scores that are chosen from, of which 16 come twice: the same sums in another order of adding up."""
    random = np.random.default_rng(3)
    weights = random.standard_normal((256, _SCORES)).astype(np.float32) / 16
    order = random.permutation(256)
    model = onnx.parser.parse_model(_CHOOSING)
    tensors = {
        "w": weights,
        "order": order,
        "twins": weights[order, :_TWINS],
        "k": np.array([_SCORES + _TWINS]),
        "other": random.standard_normal((1, _SCORES + _TWINS)).astype(np.float32),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in tensors.items())
    return model


def _reference(model: onnx.ModelProto, folder: Path, size: int = 256) -> Reference:
    onnx.save(model, folder / "m.onnx")
    taken, _ = ingest(folder / "m.onnx", folder)
    sample = {"x": np.random.default_rng(5).standard_normal((1, size)).astype(np.float32)}
    return Reference(taken, [sample], folder / "reference")


@pytest.mark.slow
def test_equal_scores_are_ties_and_all_others_are_not(tmp_path: Path) -> None:
    reference = _reference(choosing_model(), tmp_path)
    (found,) = reference.expected(["top", "place", "chosen", "scores"])
    scores = found["scores"]
    assert isinstance(scores, np.ndarray)
    assert isinstance(found["top"], np.ndarray)
    by_score = np.argsort(-scores[0], kind="stable")
    twins = (by_score < _TWINS) | (by_score >= _SCORES)
    for name in ("place", "chosen"):
        value = found[name]
        assert isinstance(value, Ranged)
        assert value.undecided[0].tolist() == twins.tolist()
    assert reference.ties() == {"place": (32, 80), "chosen": (32, 80)}
    assert not reference.beyond_comparing


@pytest.mark.slow
def test_another_order_of_equals_is_right_and_of_others_wrong(tmp_path: Path) -> None:
    (found,) = _reference(choosing_model(), tmp_path).expected(["place"])
    place = found["place"]
    assert isinstance(place, Ranged)
    swapped, wrong = place.value.copy(), place.value.copy()
    first = int(np.argmax(place.undecided[0]))
    swapped[0, [first, first + 1]] = swapped[0, [first + 1, first]]
    assert output_error("max", [swapped], [place]) == 0
    first = int(np.argmin(place.undecided[0]))
    wrong[0, first] += 1
    assert output_error("max", [wrong], [place]) == np.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        # Nothing is chosen; nothing is rounded before the choice; the choice is no number's.
        "g (float[1, 8] x) => (float[1, 8] y) { y = MatMul(x, w) }",
        "g (float[1, 8] x) => (int64[1] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }",
        "g (float[1, 8] x) => (float[1, 8] y) { z = MatMul(x, w) y = Cast <to = 1> (z) }",
    ],
)
def test_a_model_that_chooses_nothing_by_sums_is_run_no_further(text: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    weights = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    model.graph.initializer.append(weights)
    reference = _reference(model, tmp_path, 8)
    assert find_choices(reference.model.index) is None
    assert isinstance(reference.expected(["y"])[0]["y"], np.ndarray)


@pytest.mark.slow
def test_value_with_mostly_ties_is_compared_as_it_is(tmp_path: Path) -> None:
    """Eight equal sums: each place could be anyone's, and nothing would be left to prove."""
    text = "g (float[1, 8] x) => (int64[1, 8] y) { z = MatMul(x, w) s, y = TopK(z, k) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    column = np.random.default_rng(1).standard_normal((8, 1)).astype(np.float32)
    tensors = {"w": np.repeat(column, 8, axis=1), "k": np.array([8])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in tensors.items())
    reference = _reference(model, tmp_path, 8)
    assert find_choices(reference.model.index) is not None
    assert isinstance(reference.expected(["y"])[0]["y"], np.ndarray)
    assert reference.beyond_comparing == {"y"}


def _finding_model(threshold: float) -> onnx.ModelProto:
    """Finds which of 64 equal sums are larger than what they are but for rounding, or than a threshold."""
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[1, 2048] x) => (int64[2, N] y) {{
        moved = Gather <axis = 1> (x, order)
        a = MatMul(x, w)  b = MatMul(moved, same)  c = Sub(a, b)
        limit = Constant <value_float: float = {threshold}> ()
        larger = Greater(c, limit)  y = NonZero(larger)
    }}"""
    random = np.random.default_rng(4)
    order = random.permutation(2048)
    weights = random.standard_normal((2048, 64)).astype(np.float32)
    model = onnx.parser.parse_model(text)
    tensors = {"w": weights, "order": order, "same": weights[order]}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in tensors.items())
    return model


@pytest.mark.slow
def test_a_size_that_rounding_decides_is_beyond_comparing(tmp_path: Path) -> None:
    reference = _reference(_finding_model(0.0), tmp_path, 2048)
    reference.expected(["y"])
    assert reference.beyond_comparing == {"larger", "y"} and not reference.ties()


@pytest.mark.slow
def test_so_is_one_that_is_empty_by_rounding(tmp_path: Path) -> None:
    """No difference is larger than those of another order of adding up, but some that are moved are."""
    reference = _reference(_finding_model(1e-3), tmp_path, 2048)
    (found,) = reference.expected(["y"])
    assert isinstance(found["y"], np.ndarray) and found["y"].size == 0
    assert "y" in reference.beyond_comparing


@pytest.mark.slow
def test_failure_of_all_runtimes_says_that_rounding_decides(tmp_path: Path) -> None:
    """Held to the reference's own choices among 64 equal sums, none that adds up otherwise may run."""
    with pytest.raises(NoPlanError, match=r"rounding alone decides most of 'y'.*--inputs"):
        tuned(_finding_model(0.0), ["openvino"], tmp_path, time_limit_s=5.0)


@pytest.mark.slow
@pytest.mark.parametrize(("node", "told"), [("Relu(minus)", True), ("Neg(minus)", False)])
def test_outputs_that_hardly_vary_are_reported(node: str, told: bool, tmp_path: Path) -> None:
    """A model that gives the same whatever it is given would let every runtime pass."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[1, 64] x) => (float[1, 64] y) {{ plus = Sigmoid(x)  minus = Neg(plus)  y = {node} }}""")
    made = tuned(model, ["onnxruntime", "openvino"], tmp_path, time_limit_s=5.0)
    assert any("no output changes" in text for text in made.report["warnings"]) == told


@pytest.mark.slow
def test_runtime_with_another_summation_order_may_win(
    tmp_path: Path,
) -> None:
    """Its sums differ in the last digit, and its artifact loads nevertheless."""
    made = tuned(choosing_model(), ["openvino"], tmp_path, time_limit_s=5.0)
    assert made.report["max_relative_error"] < 1e-5
    told = [text for text in made.report["warnings"] if "rounding alone decides" in text]
    assert any("'place'" in text for text in told) and any("'chosen'" in text for text in told)
    sample = {"x": np.random.default_rng(5).standard_normal((1, 256)).astype(np.float32)}
    with collage.load(made.path, cache_dir=False) as session:
        (place,) = session.run(["place"], sample)
    assert sorted(place[0].tolist()) == list(range(_SCORES + _TWINS))

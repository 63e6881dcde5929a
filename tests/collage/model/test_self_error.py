"""A model that rounds to integers differs from itself when its numbers hardly move; no runtime must err less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.artifact.verification import VERIFICATION_KEY, Verification
from collage.backends.numerics.seeded import seeded_inputs
from collage.events import Event, ignore
from collage.model.reference import Reference, ingest
from collage.model.self_error import allow_self_error, rounds_to_integers
from collage.options import TuneOptions
from tests.tuning import tuned

_QUANTIZED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1, 3, 48, 48] x) => (float[1, 8, 46, 46] y) {
    w1 = DequantizeLinear(q1, s, z)
    w2 = DequantizeLinear(q2, s, z)
    a = Conv(x, w1)
    b = Relu(a)
    c = QuantizeLinear(b, step, zero)
    d = DequantizeLinear(c, step, zero)
    e = Conv <pads = [1, 1, 1, 1]> (d, w2)
    f = QuantizeLinear(e, step, middle)
    y = DequantizeLinear(f, step, middle)
}"""
_WEIGHTS_ONLY = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1, 3, 48, 48] x) => (float[1, 16, 46, 46] y) {
    p = QuantizeLinear(x, step, middle)
    r = DequantizeLinear(p, step, middle)
    w1 = DequantizeLinear(q1, s, z)
    y = Conv(r, w1)
}"""


def _model(text: str, step: float = 0.04) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    tensors = {
        "q1": random.integers(-127, 128, (16, 3, 3, 3)).astype(np.int8),
        "q2": random.integers(-127, 128, (8, 16, 3, 3)).astype(np.int8),
        "s": np.array(0.003, np.float32),
        "z": np.array(0, np.int8),
        "step": np.array(step, np.float32),
        "zero": np.array(0, np.uint8),
        "middle": np.array(128, np.uint8),
    }
    used = {name for node in model.graph.node for name in node.input}
    made = [onnx.numpy_helper.from_array(a, n) for n, a in tensors.items() if n in used]
    model.graph.initializer.extend(made)
    return model


def _reference(text: str, folder: Path, step: float = 0.04) -> Reference:
    onnx.save(_model(text, step), folder / "m.onnx")
    model, info = ingest(folder / "m.onnx", folder)
    return Reference(model, [seeded_inputs(info.inputs, 0)], folder / "reference")


@pytest.mark.slow
def test_self_error_is_about_a_step_and_becomes_the_tolerance(tmp_path: Path) -> None:
    reference = _reference(_QUANTIZED, tmp_path)
    (values,) = reference.values(["y"])
    step = 0.04 / float(np.abs(values["y"]).max())
    events: list[Event] = []
    asked = TuneOptions(tolerance=1e-3)
    options, told = allow_self_error([reference], asked, tmp_path / "own", events.append)
    assert step * 0.99 <= options.tolerance <= 5 * step
    assert len(told) == 1 and f"{options.tolerance:.3g}" in told[0] and "0.001" in told[0]
    assert "moving weights" in events[-1].message
    wide = TuneOptions(tolerance=0.9)
    assert allow_self_error([reference], wide, tmp_path / "again", ignore) == (wide, [])


def test_model_that_rounds_only_its_input_keeps_the_asked_tolerance(tmp_path: Path) -> None:
    reference = _reference(_WEIGHTS_ONLY, tmp_path)
    assert not rounds_to_integers(reference.model.index)
    asked = TuneOptions(tolerance=1e-3)
    assert allow_self_error([reference], asked, tmp_path / "own", ignore) == (asked, [])


def test_operators_on_integers_round_too(tmp_path: Path) -> None:
    text = _WEIGHTS_ONLY.replace("r = DequantizeLinear(p, step, middle)", "")
    text = text.replace("w1 = DequantizeLinear(q1, s, z)", "")
    text = text.replace("Conv(r, w1)", "QLinearConv(p, step, middle, q1, s, z, step, middle)")
    text = text.replace("float[1, 16, 46, 46] y", "uint8[1, 16, 46, 46] y")
    assert rounds_to_integers(_reference(text, tmp_path).model.index)


@pytest.mark.slow
def test_self_error_is_the_largest_of_all_samples(tmp_path: Path) -> None:
    """Of two samples one has hardly a value near the middle between two integers."""
    reference = _reference(_QUANTIZED, tmp_path)
    model, (sample,) = reference.model, reference.samples
    still = Reference(model, [{"x": np.zeros_like(sample["x"])}], tmp_path / "still")
    asked = TuneOptions(tolerance=1e-4)
    alone, _ = allow_self_error([reference], asked, tmp_path / "one", ignore)
    both, _ = allow_self_error([still, reference], asked, tmp_path / "both", ignore)
    assert both.tolerance == alone.tolerance > 1e-4
    assert allow_self_error([still], asked, tmp_path / "own", ignore)[0] == asked


@pytest.mark.slow
def test_a_large_part_of_the_outputs_is_too_much_to_allow(tmp_path: Path) -> None:
    """In steps that are as large as most of the values the outputs are noise."""
    reference = _reference(_QUANTIZED, tmp_path, step=1.5)
    asked = TuneOptions(tolerance=1e-3)
    options, (told,) = allow_self_error([reference], asked, tmp_path / "own", ignore)
    assert options == asked
    assert "too much to allow" in told and "--inputs" in told


@pytest.mark.slow
def test_failed_self_error_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    reference = _reference(_QUANTIZED, tmp_path)
    asked = TuneOptions(tolerance=1e-3, metric="max")
    unknown = asked.model_copy(update={"metric": "unheard of"})
    options, (told,) = allow_self_error([reference], unknown, tmp_path / "own", ignore)
    assert options == unknown
    assert "could not be found out" in told and "unheard of" in told


@pytest.mark.slow
def test_every_runtime_may_run_it(tmp_path: Path) -> None:
    """Held to a thousandth neither may: each adds up in an order of its own."""
    made = tuned(_model(_QUANTIZED), ["onnxruntime", "openvino"], tmp_path, strategy="single")
    report = made.report
    assert not any("infeasible" in baseline for baseline in report["baselines"])
    assert report["max_relative_error"] <= report["tolerance"] > 1e-3
    assert any("rounds to integers" in text for text in report["warnings"])
    with collage.load(made.path, cache_dir=False):
        pass


@pytest.mark.slow
def test_a_tuning_that_is_known_does_not_look_for_it_again(tmp_path: Path) -> None:
    onnx.save(_model(_QUANTIZED), tmp_path / "m.onnx")
    said: list[list[str]] = []
    artifacts = []
    for name in ("first", "second"):
        events: list[Event] = []
        artifacts.append(
            collage.tune(
                tmp_path / "m.onnx",
                ["onnxruntime", "openvino"],
                output=tmp_path / f"{name}.collage.onnx",
                database=f"sqlite:///{tmp_path / 'costs.db'}",
                time_limit_s=2.0,
                on_event=events.append,
            )
        )
        said.append([event.message for event in events])
    first, second = (any("moving weights" in text for text in texts) for texts in said)
    assert first and not second
    assert any("known since" in text for text in said[1])
    reports = [artifact.report for artifact in artifacts]
    assert reports[0]["tolerance"] == reports[1]["tolerance"] > 1e-3
    assert reports[0]["warnings"] == reports[1]["warnings"]
    allowed = [_allowed(artifact.path) for artifact in artifacts]
    assert allowed[0] == allowed[1] and max(allowed[0].values()) > 1e-3


def _allowed(artifact: Path) -> dict[str, float]:
    """What each value may err by when the artifact is loaded."""
    (text,) = (p.value for p in onnx.load(artifact).metadata_props if p.key == VERIFICATION_KEY)
    return dict(Verification.from_text(text).tolerance)

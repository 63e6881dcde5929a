"""Whole tunings of models that once were refused or failed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import collage
from collage.backends.registry import for_tests, installed
from collage.partitioner.errors import BadInputError
from tests.shipped_models.test_ingest import saved

pytestmark = pytest.mark.slow


def test_given_inputs_prove_a_model_that_no_seed_can_run(tmp_path: Path) -> None:
    path = saved(
        """
        m (float[6, 8] x, int64[2] sp) => (float[r, 8] y, float[s, 8] z) {
            a, b = Split<axis = 0>(x, sp)
            y = Sigmoid(a)
            z = Tanh(b)
        }
        """,
        tmp_path,
        13,
    )
    sample = {"x": np.ones((6, 8), np.float32), "sp": np.array([2, 4], np.int64)}
    artifact = _tuned(path, sample, tmp_path)
    with collage.load(artifact.path) as session:
        y, z = session.run(None, sample)
        assert (y.shape, z.shape) == ((2, 8), (4, 8))
        y, z = session.run(None, {**sample, "sp": np.array([5, 1], np.int64)})
    assert (y.shape, z.shape) == ((5, 8), (1, 8))
    np.testing.assert_allclose(z, np.tanh(1.0), rtol=1e-6)


def test_noise_that_inputs_switch_off_is_tuned_and_run(tmp_path: Path) -> None:
    """The kind of a text-to-speech model: noise decides values and lengths unless its scale is zero."""
    path = saved(
        """
        m (float[8] x, float scale) => (float[1, n] y) <float one = {1}> {
            a = Tanh(x)
            noise = RandomNormalLike(a)
            k = Mul(noise, scale)
            b = Add(a, k)
            keep = Greater(b, one)
            not = Not(keep)
            i = NonZero(not)
            y = Cast<to = 1>(i)
        }
        """,
        tmp_path,
    )
    sample = {"x": np.arange(8, dtype=np.float32), "scale": np.zeros((), np.float32)}
    artifact = _tuned(path, sample, tmp_path)
    with collage.load(artifact.path) as session:
        (made,) = session.run(None, sample)
    np.testing.assert_array_equal(made, [np.arange(8)])


def test_without_targets_all_installed_runtimes_are_compared(tmp_path: Path) -> None:
    assert installed() and not any(map(for_tests, installed()))
    path = saved("m (float[b, 8] x) => (float[b, 8] y) { y = Relu(x) }", tmp_path)
    said: list[str] = []
    artifact = collage.tune(
        path,
        [],
        output=tmp_path / "a.onnx",
        dims={"b": 2},
        database=f"sqlite:///{tmp_path}/c.db",
        time_limit_s=2,
        on_event=lambda event: said.append(event.message),
    )
    assert artifact.report["targets"] == installed()
    assert any("no target is given" in text and installed()[0] in text for text in said)


def test_empty_cache_of_a_decoder_is_a_size_like_any_other(tmp_path: Path) -> None:
    path = saved(
        "m (float[p, 4] past, float[1, 4] x) => (float[t, 4] y) { y = Concat<axis = 0>(past, x) }",
        tmp_path,
    )
    artifact = collage.tune(
        path,
        ["onnxruntime"],
        output=tmp_path / "a.onnx",
        dims={"p": 0},
        database=f"sqlite:///{tmp_path}/c.db",
        time_limit_s=2,
    )
    sample = {"past": np.zeros((0, 4), np.float32), "x": np.ones((1, 4), np.float32)}
    with collage.load(artifact.path) as session:
        (made,) = session.run(None, sample)
    np.testing.assert_array_equal(made, sample["x"])


def test_a_call_costs_what_the_plain_runtime_costs(tmp_path: Path) -> None:
    """Outputs whose shape no file tells, as of decision trees; a tuning compares by the same call."""
    path = saved(
        "m (float[4, 8] x) => (int64[2, n] i, float total) { i = NonZero(x)  total = ReduceSum<keepdims = 0>(x) }",
        tmp_path,
    )
    target = "onnxruntime -threads=1"
    database = f"sqlite:///{tmp_path}/c.db"
    artifact = collage.tune(
        path, [target], output=tmp_path / "a.onnx", database=database, time_limit_s=2
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    plain = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {"x": np.ones((4, 8), np.float32)}
    with collage.load(artifact.path) as session:
        blocks = [
            (
                _median_us(session.run, feed),
                _median_us(plain.run, feed),
                _median_us(_call(session), feed),
            )
            for _ in range(15)
        ]
    ours_us, plain_us, timed_us = (statistics.median(times) for times in zip(*blocks, strict=True))
    assert ours_us <= max(plain_us + 5.0, plain_us * 1.1)
    assert timed_us <= max(plain_us + 2.0, plain_us * 1.1)


def _call(session: collage.Session) -> Callable[..., object]:
    """What a tuning times, of one target as of several."""
    return lambda outputs, feed: session._requests.run(lambda instance: instance.run())


def _median_us(run: Callable[..., object], feed: dict[str, np.ndarray]) -> float:
    times = []
    for _ in range(200):
        begin = time.perf_counter_ns()
        run(None, feed)
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1e3


def _tuned(path: Path, sample: Mapping[str, np.ndarray], folder: Path) -> collage.Artifact:
    np.savez(folder / "in.npz", allow_pickle=False, **sample)
    return collage.tune(
        path,
        ["onnxruntime", "openvino"],
        output=folder / "a.onnx",
        inputs=folder / "in.npz",
        database=f"sqlite:///{folder}/c.db",
        time_limit_s=5,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "dims"), [("4", {}), ("n", {"n": "1..4"})])
def test_metadata_reaches_the_session(rows: str, dims: dict[str, str], tmp_path: Path) -> None:
    text = f"m (float[{rows}, 8] x) => (float[{rows}, 8] y) {{ a = Tanh(x)  y = Relu(a) }}"
    path = saved(text, tmp_path)
    proto = onnx.load(path)
    proto.metadata_props.add(key="names", value="['cat']")
    onnx.save(proto, path)
    artifact = collage.tune(
        path,
        ["onnxruntime"],
        dims=dims,
        output=tmp_path / "a.onnx",
        database=f"sqlite:///{tmp_path}/c.db",
        time_limit_s=5,
    )
    with collage.load(artifact.path) as session:
        assert dict(session.get_modelmeta().custom_metadata_map) == {"names": "['cat']"}


def test_values_of_four_bits_stay_inside_partitions(tmp_path: Path) -> None:
    text = """
        m (float[4, 8] x) => (float[4, 8] y) <float scale = {0.25}, int4 zero = {0}> {
            a = Tanh(x)
            q = QuantizeLinear(a, scale, zero)
            d = DequantizeLinear(q, scale, zero)
            y = Relu(d)
        }
    """
    artifact = collage.tune(
        saved(text, tmp_path, 21),
        ["onnxruntime"],
        output=tmp_path / "a.onnx",
        database=f"sqlite:///{tmp_path}/c.db",
        time_limit_s=3,
    )
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    with collage.load(artifact.path) as session:
        (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, np.maximum(np.round(np.tanh(x) / 0.25) * 0.25, 0), atol=1e-6)


def test_text_may_be_given_in_numpys_own_type(tmp_path: Path) -> None:
    """As ONNX Runtime takes it."""
    text = "m (string[2] a, string[n] b) => (string[2] y, string[n] z) { y = StringConcat(a, a)  z = Identity(b) }"
    artifact = collage.tune(
        saved(text, tmp_path, 20),
        ["onnxruntime"],
        output=tmp_path / "a.onnx",
        dims={"n": "1..3"},
        database=f"sqlite:///{tmp_path}/c.db",
        time_limit_s=3,
    )
    with collage.load(artifact.path) as session:
        y, z = session.run(None, {"a": np.array(["ä", "word"]), "b": np.array(["one", "", "three"])})
        with pytest.raises(BadInputError, match="'a' must be a numpy array of object, not float32"):
            session.run(None, {"a": np.zeros(2, np.float32), "b": np.array(["b"])})
    assert (y.tolist(), z.tolist()) == (["ää", "wordword"], ["one", "", "three"])


def test_sequences_stay_inside_partitions(tmp_path: Path) -> None:
    """No runtime hands one over; a cut there once ended the tuning."""
    text = """
        m (float[6, 4] x, int64[2] sp) => (float[a, 4] y, float[b, 4] z) <int64 one = {1}, int64 zero = {0}> {
            s = SplitToSequence<axis = 0>(x, sp)
            p = SequenceAt(s, zero)  y = Exp(p)
            q = SequenceAt(s, one)  z = Neg(q)
        }
    """
    sample = {"x": np.ones((6, 4), np.float32), "sp": np.array([2, 4], np.int64)}
    artifact = _tuned(saved(text, tmp_path), sample, tmp_path)
    with collage.load(artifact.path) as session:
        y, z = session.run(None, {**sample, "sp": np.array([5, 1], np.int64)})
    assert (y.shape, z.shape, float(z[0, 0])) == ((5, 4), (1, 4), -1.0)

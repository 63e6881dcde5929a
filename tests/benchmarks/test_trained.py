"""The benchmark of trained models: its data, its rows, and packages that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from benchmarks.trained.__main__ import _line, _table
from benchmarks.trained.case import sizes
from benchmarks.trained.embeddings import encoder, word_pieces
from benchmarks.trained.files import _features
from benchmarks.trained.layout import _decoded
from benchmarks.trained.measure import _beside_fp32
from benchmarks.trained.packages import MissingPackageError, package
from benchmarks.trained.pictures import scene
from benchmarks.trained.speech import _sound
from benchmarks.trained.tones import _melody
from collage.backends.numerics.reference import run_reference

CONFIG = {"beg_size": 4, "end_size": 4, "block_size": 8, "padding_token": 256}


def _row(**changes: Any) -> dict[str, Any]:
    return {
        "evaluation": {"metric": "top1", "proven": False, "samples_needed": 299},
        "unseen": {"reference": 0.9, "drop": 0.001, "upper": 0.02, "allowed": 0.009},
        "speedup": 2.0,
        "best_fp32": "openvino",
        "samples": [200, 100],
        "seconds": 100.0,
        "partitions": [["openvino -precision=bf16", 3], ["openvino", 2]],
        **changes,
    }


@pytest.mark.slow
def test_a_package_that_cannot_be_fetched_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_BENCHMARK_CACHE", str(tmp_path))
    with pytest.raises(MissingPackageError, match="cannot be fetched"):
        package("not a requirement")
    assert not list((tmp_path / "packages").glob("not a requirement"))


def test_rows_tell_what_was_proven_and_what_is_over() -> None:
    over = _row(unseen={"reference": 0.9, "drop": 0.02, "upper": None, "allowed": 0.009})
    rows = {"good": _row(), "bad": over, "missing": {"error": "it cannot be fetched"}}
    assert "no, needs 299" in _line("good", rows["good"])
    table = _table(rows, {"targets": ["openvino"], "hardware": "here"})
    assert "Geomean of 2 models: 2.00" in table
    assert "Over the bound on unseen samples: bad." in table
    assert "| missing | it cannot be fetched |" in table
    columns = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert columns == {10}


def test_a_peer_is_told_beside_ours_or_why_it_failed() -> None:
    ratio = {"ratio": 1.5, "low": 1.4, "high": 1.6}
    peer = {
        "seconds": 300.0,
        "unseen": {"drop": 0.004},
        **{"speedup": ratio, "ours": {**ratio, "ratio": 2.1}, "ours_beside": ratio},
    }
    rows = {"good": _row(nncf=peer), "bad": _row(nncf={"error": "NNCF failed: no"}), "alone": _row()}
    table = _table(rows, {"targets": ["openvino"], "hardware": "here"})
    assert (
        "| good | 0.0090 | 2.10 | 0.0010 | 100 | 1.50 | 0.0040 | 300 | 1.50 (1.40 to 1.60) |" in table
    )
    assert "| bad | 0.0090 | 2.00 | 0.0010 | 100 | NNCF failed: no | | | |" in table
    assert table.count("| alone |") == 1


def test_free_dimensions_get_the_sizes_of_inputs(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    g (float[batch, 3, rows] x, float[2] other) => (float[batch, 3, rows] y) { y = Relu(x) }
    """
    ir.save(ir.from_onnx_text(text), tmp_path / "m.onnx")
    assert sizes(tmp_path / "m.onnx", {"x": (1, 3, 48)}) == {"batch": 1, "rows": 48}


def test_words_are_cut_into_the_longest_known_pieces() -> None:
    pieces = ("[CLS]", "[SEP]", "[UNK]", "un", "##able", "##a", "able", ",", "cafe")
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    assert word_pieces("Unable, Café xyz", vocabulary) == [0, 3, 4, 7, 8, 2, 1]
    assert len(word_pieces("able " * 100, vocabulary)) == 64


def test_the_encoder_gives_vectors_of_unit_length_and_leaves_padding_out(tmp_path: Path) -> None:
    random, size, length = np.random.default_rng(0), 8, 6
    shapes = {
        "embeddings.word_embeddings.weight": (10, size),
        "embeddings.position_embeddings.weight": (length, size),
        "embeddings.token_type_embeddings.weight": (2, size),
    }
    linears = {
        **{f"attention.self.{part}": (size, size) for part in ("query", "key", "value")},
        "attention.output.dense": (size, size),
        "intermediate.dense": (2 * size, size),
        "output.dense": (size, 2 * size),
    }
    for name, shape in linears.items():
        shapes |= {
            f"encoder.layer.0.{name}.weight": shape,
            f"encoder.layer.0.{name}.bias": shape[:1],
        }
    for norm in (
        "embeddings",
        *(f"encoder.layer.0.{part}" for part in ("attention.output", "output")),
    ):
        shapes |= {f"{norm}.LayerNorm.{part}": (size,) for part in ("weight", "bias")}
    tensors = {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    ir.save(ir.from_proto(encoder(tensors, heads=2, length=length)), tmp_path / "m.onnx")
    mask = np.array([[1, 1, 1, 0, 0, 0]], np.int64)
    found = [
        run_reference(
            tmp_path / "m.onnx",
            {"input_ids": np.array([[1, 2, 3, *rest]], np.int64), "attention_mask": mask},
            ["embedding"],
        )["embedding"]
        for rest in ([0, 0, 0], [4, 5, 6])
    ]
    assert np.linalg.norm(found[0]) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_layouts_are_decoded_as_their_package_does(tmp_path: Path) -> None:
    """The expected distance of each side, times the stride, from the middle of its place."""
    graph = ir.to_proto(
        ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["" : 13]>
            g (float[1, 130, 32] sides) => (float[1, 130, 32] y) { y = Relu(sides) }"""
        )
    )
    name = _decoded(graph.graph, "sides", 64)
    graph.graph.output[0].name = name
    del graph.graph.output[0].type.tensor_type.shape.dim[:]
    graph.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(graph, tmp_path / "m.onnx")
    sides = np.random.default_rng(0).standard_normal((1, 130, 32)).astype(np.float32)
    made = run_reference(tmp_path / "m.onnx", {"sides": sides}, [name])[name]
    shares = np.exp(sides.reshape(130, 4, 8))
    away = (shares / shares.sum(axis=2, keepdims=True) * np.arange(8)).sum(axis=2) * 64
    place = 23  # the third row of ten places, the fourth column
    middle = np.array([3.5, 2.5, 3.5, 2.5]) * 64
    np.testing.assert_allclose(made[place], middle + [-1, -1, 1, 1] * away[place], rtol=1e-4)


def test_the_best_fp32_is_the_fastest_exact_single_target() -> None:
    def plan(target: str, latency_us: float, error: float, partitions: int = 1) -> dict[str, Any]:
        return {
            "targets": [target], "latency_us": latency_us, "max_relative_error": error,
            "partitions": partitions,
        }  # fmt: skip

    report = {
        "targets": ["a", "b", "b -q"],
        "plans": [
            plan("a", 30.0, 1e-6), plan("b", 20.0, 1e-6), plan("b -q", 5.0, 1e-2),
            plan("b", 10.0, 1e-6, partitions=2), {"targets": ["b"], "partitions": 1},
        ],
        "latency_us": 10.0,
    }  # fmt: skip
    assert _beside_fp32(report) == {"best_fp32": "b", "speedup": 2.0}
    assert _beside_fp32({**report, "plans": []})["speedup"] is None
    # Rounding alone decides elements: all that compute in fp32 err by as much.
    rounded = [plan("a", 30.0, 6.51e-4), plan("b", 20.0, 6.5e-4), plan("b -q", 5.0, 1e-2)]
    assert _beside_fp32({**report, "plans": rounded}) == {"best_fp32": "b", "speedup": 2.0}


def test_files_are_read_as_magika_reads_them(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"  ab\n")
    assert _features(tmp_path / "f", CONFIG).tolist() == [97, 98, 10, 256, 32, 32, 97, 98]


def test_sounds_and_pictures_are_the_same_each_time_and_finite() -> None:
    random = np.random.default_rng
    sound, pitches = _melody(random(3))
    assert sound.shape == (43_844,) and pitches.shape == (172,)
    assert pitches.min() >= 45 and pitches.max() < 84
    for first, second in (
        (sound, _melody(random(3))[0]),
        (_sound(4, random(1)), _sound(4, random(1))),
        (scene(random(2)), scene(random(2))),
    ):
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(scene(random(2)), scene(random(4)))

"""Digests in the artifact: they catch wrong values, keep right ones, survive being stored, and are compared as often as need be."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import collage
from collage.artifact import session as session_module
from collage.artifact import verify
from collage.artifact.artifact import make_verification
from collage.artifact.verification import (
    ValueDigest,
    Verification,
    VerificationError,
    digest_values,
    input_hashes,
)
from collage.backends.numerics.comparison import Ranged
from collage.backends.numerics.seeded import EDITION, seeded_inputs
from collage.backends.support import conversion
from collage.partitioner.tensor import TensorSpec
from collage.runtime.executor import Executor
from tests.collage.artifact.test_instances import WIDTH, artifact, here

FEED = {"x": np.linspace(-1, 1, WIDTH, dtype=np.float32)[None]}


def _value(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _verification(value: np.ndarray, tolerance: float) -> Verification:
    inputs = ({"x": "0" * 64},)
    return Verification((0,), inputs, digest_values([{"y": value}]), {"y": tolerance})


def test_the_same_value_passes_after_a_round_trip_through_text() -> None:
    value = _value(1, 3, 50, 50)
    stored = Verification.from_text(_verification(value, 1e-6).to_text())
    assert stored.error_of(0, "y", value) == 0.0


def test_wrong_channel_is_seen_though_few_elements_are_kept() -> None:
    value = _value(2, 64, 56, 56)
    wrong = value.copy()
    wrong[17] = 0
    assert _verification(value, 1e-3).error_of(0, "y", wrong) > 1e-3


def test_noise_below_the_tolerance_passes() -> None:
    value = _value(3, 1000)
    assert 0 < _verification(value, 1e-2).error_of(0, "y", value * np.float32(1.001)) < 2e-3


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_value_that_is_not_finite_fails(wrong: float) -> None:
    value = _value(4, 100)
    bad = value.copy()
    bad[:] = wrong
    assert not _verification(value, 0.5).error_of(0, "y", bad) <= 0.5


def test_infinite_reference_allows_numbers_and_nothing_else() -> None:
    value = _value(4, 1000)
    value[::100] = -np.inf
    stored = Verification.from_text(_verification(value, 1e-3).to_text())
    large = np.where(np.isfinite(value), value, np.float32(-87.3))
    assert stored.error_of(0, "y", large) == 0.0 == stored.error_of(0, "y", value)
    for place, wrong in ((0, np.nan), (0, np.inf), (1, np.nan)):
        bad = large.copy()
        bad[place] = wrong
        assert stored.error_of(0, "y", bad) == float("inf"), place


def test_digest_of_an_older_artifact_is_read() -> None:
    data = ValueDigest.of(_value(8, 10)).as_json()
    del data["counts"]
    older = ValueDigest.from_json(data)
    assert older.counts is None and older.error_of(_value(8, 10)) == 0.0


@pytest.mark.parametrize("edition", range(EDITION + 1))
def test_seeded_inputs_of_older_artifacts_are_made_again(edition: int) -> None:
    names = ("attention_mask:0", "mask", "padding_mask")
    specs = [TensorSpec(name, "int64", (1, 6)) for name in names]
    sample = seeded_inputs(specs, 3, edition=edition)
    stored = Verification((3,), (input_hashes(sample),), ({},), {})
    (again,) = verify.samples_of(stored, specs)
    assert input_hashes(again) == input_hashes(sample)


def test_only_a_tolerance_of_one_allows_another_shape() -> None:
    kept = _verification(_value(5, 4, 5), 0.5)
    assert kept.error_of(0, "y", _value(5, 5, 4)) == 1.0
    assert kept.error_of(0, "y", _value(5, 20)) == float("inf")
    assert kept.error_of(0, "y", _value(5, 5, 4).astype(np.float64)) == float("inf")


def test_values_that_were_not_kept_are_not_judged() -> None:
    assert _verification(_value(6, 4), 1e-3).error_of(0, "other", _value(7, 4)) == 0.0


def test_integers_text_and_empty_tensors_are_kept() -> None:
    for value in (
        np.arange(10),
        np.array(["a", "b"], dtype=object),
        np.zeros((0, 3), np.float32),
        np.array(3.5, np.float32),
        np.array([True, False]),
    ):
        digest = ValueDigest.from_json(ValueDigest.of(value).as_json())
        assert digest.error_of(value) == 0.0
    assert ValueDigest.of(np.arange(10)).error_of(np.arange(10) + 1) == 1
    text = np.array(["a", "b"], dtype=object)
    assert ValueDigest.of(text).error_of(np.array(["a", "c"], dtype=object)) == 0.5


def test_integers_of_8_bits_are_numbers() -> None:
    value = np.array([100, -50, 3], np.int8)
    digest = ValueDigest.from_json(ValueDigest.of(value).as_json())
    assert digest.error_of(np.array([101, -50, 3], np.int8)) == pytest.approx(1 / 100)


def test_damaged_text_is_a_clear_error() -> None:
    for text in ("", "{}", "[1]", '{"seeds": 1}'):
        with pytest.raises(VerificationError, match="damaged"):
            Verification.from_text(text)


def test_input_hashes_tell_inputs_apart() -> None:
    one, two = input_hashes({"x": _value(1, 3)}), input_hashes({"x": _value(2, 3)})
    assert one != two
    assert one == input_hashes({"x": _value(1, 3)})


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_tied_elements_verify_nothing_and_others_do(dtype: type) -> None:
    value = np.arange(100).astype(dtype)
    swapped, wrong = value.copy(), value.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    wrong[7] = 90
    ranged = Ranged(value, np.minimum(value, swapped), np.maximum(value, swapped))
    kept = Verification((0,), ({},), digest_values([{"y": ranged}]), {"y": 1e-3})
    stored = Verification.from_text(kept.to_text())
    assert stored.error_of(0, "y", swapped) == 0
    assert stored.error_of(0, "y", wrong) >= 0.01
    strict = Verification((0,), ({},), digest_values([{"y": value}]), {"y": 1e-3})
    assert strict.error_of(0, "y", swapped) >= 0.01


def test_tolerance_allows_no_wrong_label_but_the_observed_share() -> None:
    """A tolerance for numbers allows no other label, except as many as the tuning saw."""
    labels = np.arange(1000) % 7
    outputs = [{"labels": labels, "y": _value(8, 9)}]
    strict = make_verification((0,), [{}], outputs, {}, 0.1)
    wrong = labels.copy()
    wrong[0] = 6
    assert strict.tolerance["y"] == 0.1
    assert strict.error_of(0, "labels", wrong) > strict.tolerance["labels"]
    observed = {"labels": strict.error_of(0, "labels", wrong)}
    seen = make_verification((0,), [{}], outputs, observed, 0.1)
    assert seen.error_of(0, "labels", wrong) <= seen.tolerance["labels"] < 0.1
    assert seen.error_of(0, "labels", np.zeros_like(labels)) > seen.tolerance["labels"]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By how many samples an instance was compared, each time."""
    seen: list[int] = []
    real = verify.prove

    def prove(
        executor: Executor, inputs: Sequence[TensorSpec], verification: Verification
    ) -> dict[str, float]:
        seen.append(len(verification.seeds))
        return real(executor, inputs, verification)

    monkeypatch.setattr(session_module, "prove", prove)
    return seen


def load(path: Path, cache: Path, **options: int) -> tuple[np.ndarray, dict[str, float]]:
    with collage.load(path, cache_dir=cache, **options) as session:  # type: ignore[arg-type]
        return session.run(None, FEED)[0], dict(session.errors)


def changed(file: Path) -> None:
    """Write a file's bytes again, as whoever changes it does."""
    content = file.read_bytes()
    time.sleep(0.02)  # several ticks of the kernel's clock
    file.write_bytes(content)


def kept(cache: Path, *ends: str) -> list[Path]:
    return [f for f in cache.rglob("*") if f.is_file() and f.name.endswith(ends)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "ncnn"])
def test_second_load_of_the_same_files_compares_nothing(
    name: str, tmp_path: Path, compared: list[int]
) -> None:
    if not here(name):
        pytest.skip(f"{name} is not installed")
    path, cache = artifact(tmp_path, name), tmp_path / "cache"
    first, errors = load(path, cache)
    assert len(compared) == 1
    again, known = load(path, cache)
    assert len(compared) == 1
    np.testing.assert_allclose(first, again, atol=1e-6)
    assert known == errors and errors


@pytest.mark.slow
def test_runtime_that_may_load_another_model_is_compared_on_one_sample(
    tmp_path: Path, compared: list[int]
) -> None:
    if not here("mnn"):
        pytest.skip("MNN is not installed")
    path, cache = artifact(tmp_path, "onnxruntime", "mnn"), tmp_path / "cache"
    for _ in range(3):
        load(path, cache)
    assert compared == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_changed_file_of_a_runtime_is_compared_again(
    name: str, tmp_path: Path, compared: list[int]
) -> None:
    if not here(name):
        pytest.skip(f"{name} is not installed")
    path, cache = artifact(tmp_path, name), tmp_path / "cache"
    load(path, cache)
    files = kept(cache, "optimized.onnx.weights", ".blob")
    assert files
    for file in files:
        changed(file)
    load(path, cache)
    assert len(compared) == 2


@pytest.mark.slow
def test_changed_artifact_is_compared_again(tmp_path: Path, compared: list[int]) -> None:
    path, cache = artifact(tmp_path / "a", "onnxruntime"), tmp_path / "cache"
    load(path, cache)
    other = artifact(tmp_path / "b", "onnxruntime", layers=3)
    # The same place, size and time: only the time of change tells.
    before = path.stat()
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    load(path, cache)
    assert len(compared) == 2


def test_other_threads_and_instances_are_compared(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "default_threads", lambda: 4)
    path, cache = artifact(tmp_path, "onnxruntime"), tmp_path / "cache"
    load(path, cache, threads=1)
    load(path, cache, threads=2)
    load(path, cache, threads=1, instances=2)
    assert len(compared) == 4
    load(path, cache, threads=1, instances=2)
    assert len(compared) == 4


@pytest.mark.slow
def test_machine_that_started_anew_compares_again(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = artifact(tmp_path, "onnxruntime"), tmp_path / "cache"
    load(path, cache)
    for module in (verify, conversion):
        monkeypatch.setattr(module, "boot", lambda: "another")
    load(path, cache)
    assert len(compared) == 2
    for module in (verify, conversion):  # a system that does not tell
        monkeypatch.setattr(module, "boot", lambda: "")
    for count in (3, 4):
        load(path, cache)
        assert len(compared) == count


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"{}", b'{"errors": 3}', b"\xff\xfe"])
def test_damaged_note_is_no_note(content: bytes, tmp_path: Path, compared: list[int]) -> None:
    path, cache = artifact(tmp_path, "onnxruntime"), tmp_path / "cache"
    load(path, cache)
    (note,) = (cache / "verified").iterdir()
    note.write_bytes(content)
    load(path, cache)
    assert len(compared) == 2


@pytest.mark.slow
def test_without_a_cache_every_load_compares(tmp_path: Path, compared: list[int]) -> None:
    path = artifact(tmp_path, "onnxruntime")
    for _ in range(2):
        collage.load(path, cache_dir=False).close()
    assert len(compared) == 2

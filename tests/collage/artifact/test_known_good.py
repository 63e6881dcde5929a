"""A plan is compared with the reference once for the same files, and again after any change."""

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
from collage.artifact.verification import Verification
from collage.backends.support import conversion
from collage.partitioner.tensor import TensorSpec
from collage.runtime.executor import Executor
from tests.collage.artifact.test_instances import WIDTH, artifact, here

FEED = {"x": np.linspace(-1, 1, WIDTH, dtype=np.float32)[None]}


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


def test_runtime_that_may_load_another_model_is_compared_on_one_sample(
    tmp_path: Path, compared: list[int]
) -> None:
    if not here("mnn"):
        pytest.skip("MNN is not installed")
    path, cache = artifact(tmp_path, "onnxruntime", "mnn"), tmp_path / "cache"
    for _ in range(3):
        load(path, cache)
    assert compared == [2, 1, 1]


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


@pytest.mark.parametrize("content", [b"", b"{}", b'{"errors": 3}', b"\xff\xfe"])
def test_damaged_note_is_no_note(content: bytes, tmp_path: Path, compared: list[int]) -> None:
    path, cache = artifact(tmp_path, "onnxruntime"), tmp_path / "cache"
    load(path, cache)
    (note,) = (cache / "verified").iterdir()
    note.write_bytes(content)
    load(path, cache)
    assert len(compared) == 2


def test_without_a_cache_every_load_compares(tmp_path: Path, compared: list[int]) -> None:
    path = artifact(tmp_path, "onnxruntime")
    for _ in range(2):
        collage.load(path, cache_dir=False).close()
    assert len(compared) == 2

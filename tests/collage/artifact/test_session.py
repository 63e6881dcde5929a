"""Sessions: several threads at once, memory given back, and the cache of compiled blobs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import collage
from benchmarks.load_time import make_artifact
from collage.artifact.session import Session, default_cache_folder, usable_folder
from collage.backends.contract import Available
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.registry import resolve
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from tests.models import MODELS

pytestmark = pytest.mark.slow
TARGETS = tuple(Target.parse(name) for name in ("onnxruntime", "openvino", "onnxruntime"))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PP-OCR's classifier in three partitions on two alternating runtimes."""
    folder = tmp_path_factory.mktemp("session")
    info = MODELS["ppocr_cls"]
    normalize(info.path, folder, info.dims)
    model = Model.open(folder / "model.onnx")
    laid = line(model.index, model.index.all_nodes)
    third = len(laid.order) // 3
    cuts = [0, *(min(laid.waists, key=lambda w: abs(w - third * i)) for i in (1, 2)), len(laid.order)]
    parts = [Candidate(laid.run(cuts[i], cuts[i + 1]), target) for i, target in enumerate(TARGETS)]
    return make_artifact(model, Plan(tuple(parts)), folder / "cls.collage.onnx")


def _feed(session: Session, seed: int) -> dict[str, np.ndarray]:
    return seeded_inputs(session.inputs, seed)


def test_threads_do_not_disturb_each_other(artifact: Path, tmp_path: Path) -> None:
    with collage.load(artifact, cache_dir=tmp_path) as session:
        alone = {seed: session.run(None, _feed(session, seed)) for seed in range(6)}
        start = threading.Barrier(6)

        def work(seed: int) -> bool:
            start.wait()
            runs = [session.run(None, _feed(session, seed)) for _ in range(8)]
            return all(
                np.array_equal(a, b) for run in runs for a, b in zip(run, alone[seed], strict=True)
            )

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(work, range(6)))


def test_several_threads_may_load_at_once(artifact: Path, tmp_path: Path) -> None:
    def work(_: int) -> np.ndarray:
        with collage.load(artifact, cache_dir=tmp_path) as session:
            return session.run(None, _feed(session, 0))[0]

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(work, range(3))
    assert all(np.allclose(first, other, atol=1e-4) for other in others)


def test_closing_while_others_run_is_clear(artifact: Path, tmp_path: Path) -> None:
    session = collage.load(artifact, cache_dir=tmp_path)
    started = threading.Event()

    def work() -> str:
        try:
            while True:
                session.run(None, feed)
                started.set()
        except BadInputError as error:
            return str(error)

    feed = _feed(session, 0)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(work) for _ in range(2)]
        started.wait(60)
        session.close()
        assert all("closed" in end.result(60) for end in ends)


_CYCLES = """
import sys, gc, psutil
import collage
from collage.backends.numerics.seeded import seeded_inputs
grown = []
for i in range(20):
    with collage.load(sys.argv[1], cache_dir=sys.argv[2]) as session:
        session.run(None, seeded_inputs(session.inputs, i))
    gc.collect()
    grown.append(psutil.Process().memory_info().rss)
print(grown[4], grown[-1], psutil.Process().num_threads())
"""


def test_memory_and_threads_are_given_back(artifact: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CYCLES, str(artifact), str(tmp_path)],
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    early, late, threads = map(int, done.stdout.split()[-3:])
    # Allocators and libraries keep some; a leaked session keeps several MiB each time.
    assert late - early < 15 * (1 << 20), (early, late)
    assert threads < 40


def test_a_session_that_nobody_closes_leaves_no_files(artifact: Path, tmp_path: Path) -> None:
    lines = (
        "import sys, collage",
        "kept = collage.load(sys.argv[1], cache_dir=False)",
        "collage.load(sys.argv[1], cache_dir=False)",
        "print(kept.targets)",
    )
    subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(artifact)],
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert not [path.name for path in tmp_path.iterdir()]


def test_a_second_load_is_quicker_where_converting_takes_long(tmp_path: Path) -> None:
    ncnn = Target.parse("ncnn")
    if not isinstance(resolve(ncnn).probe(), Available):
        pytest.skip("ncnn is not installed")
    info = MODELS["ppocr_rec"]
    normalize(info.path, tmp_path, info.dims)
    model = Model.open(tmp_path / "model.onnx")
    plan = Plan((Candidate(model.index.all_nodes, ncnn),))
    path = make_artifact(model, plan, tmp_path / "rec.collage.onnx")
    collage.load(path, cache_dir=False).close()  # imports the runtime
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        collage.load(path, cache_dir=tmp_path / "cache").close()
        times.append(time.perf_counter() - begin)
    assert min(times[1:]) < 0.7 * times[0], times


@pytest.mark.parametrize("damage", [b"", b"not what it was", None])
def test_damaged_files_in_the_cache_do_no_harm(
    artifact: Path, tmp_path: Path, damage: bytes | None
) -> None:
    with collage.load(artifact, cache_dir=tmp_path) as session:
        feed = _feed(session, 3)
        expected = session.run(None, feed)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if damage is None else damage)
    # In a process of its own: native code that reads damaged files could crash this one.
    np.savez(tmp_path / "feed.npz", **feed)
    np.save(tmp_path / "expected.npy", expected[0])
    check = (
        "import sys, numpy, collage\n"
        "feed = dict(numpy.load(sys.argv[2] + '/feed.npz'))\n"
        "with collage.load(sys.argv[1], cache_dir=sys.argv[2]) as session:\n"
        "    made = session.run(None, feed)[0]\n"
        "assert numpy.allclose(made, numpy.load(sys.argv[2] + '/expected.npy'), atol=1e-4)\n"
    )
    subprocess.run([sys.executable, "-c", check, str(artifact), str(tmp_path)], check=True)


def test_the_cache_is_on_by_default_and_can_be_off(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    collage.load(artifact, cache_dir=False).close()
    collage.load(artifact, cache_dir="").close()
    assert not list(tmp_path.iterdir())
    collage.load(artifact).close()
    assert default_cache_folder().is_relative_to(tmp_path)
    assert list(default_cache_folder().iterdir())


def test_a_folder_that_cannot_be_made_means_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert usable_folder(tmp_path / "file" / "cache") is None
    assert usable_folder(None) is None
    assert usable_folder(tmp_path / "cache") == tmp_path / "cache"

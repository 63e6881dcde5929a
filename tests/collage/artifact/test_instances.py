"""Sessions with several instances: answers, order, shared weights, and what an artifact was tuned for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import collage
from benchmarks.load_time import make_artifact
from collage.artifact.division import divided, stages_here
from collage.backends.contract import Available
from collage.backends.registry import resolve
from collage.partitioner.candidate import Candidate, Instances, Plan
from collage.partitioner.emit.plan_json import decode_plan, encode_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

WIDTH = 64
RUNTIMES = ("onnxruntime", "openvino", "mnn", "ncnn")


def chain(folder: Path, width: int = WIDTH, layers: int = 4) -> Model:
    """Products with square weights, one after the other."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(layers):
        value = rng.standard_normal((width, width), np.float32) / np.float32(np.sqrt(width))
        weights.append(numpy_helper.from_array(value, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}" if i else "x", f"w{i}"], [f"m{i}"], f"m{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"x{i + 1}"], f"t{i}"))
    shape = [1, width]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"x{layers}", onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "given.onnx")
    return Model.open(normalize(folder / "given.onnx", folder / "normalized", {}).path)


def artifact(folder: Path, *targets: str, instances: Instances | None = None, **size: int) -> Path:
    """A chain whose operators are shared out among the targets, in blocks."""
    model = chain(folder, **size)
    count = len(model.index.nodes)
    ends = [count * i // len(targets) for i in range(len(targets) + 1)]
    parts = [
        Candidate(sum(1 << n for n in range(ends[i], ends[i + 1])), Target.parse(target))
        for i, target in enumerate(targets)
    ]
    return make_artifact(model, Plan(tuple(parts), instances=instances), folder / "m.collage.onnx")


def here(name: str) -> bool:
    return isinstance(resolve(Target.parse(name)).probe(), Available)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, so that several instances fit on any machine."""
    monkeypatch.setattr("collage.artifact.session.default_threads", lambda: 8)


@pytest.mark.slow
@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("targets", [("onnxruntime",), ("onnxruntime", "openvino", "onnxruntime")])
@pytest.mark.parametrize("instances", [1, 3])
def test_answers_of_many_threads_are_never_mixed_up(
    tmp_path: Path, targets: tuple[str, ...], instances: int
) -> None:
    if not all(map(here, targets)):
        pytest.skip("a runtime is missing")
    path = artifact(tmp_path, *targets)
    with collage.load(path, cache_dir=tmp_path / "cache", instances=instances) as session:
        assert session.instances == instances and session.threads == 8 // instances
        rng = np.random.default_rng(1)
        feeds = [{"x": rng.standard_normal((1, WIDTH), np.float32)} for _ in range(12)]
        alone = [session.run(None, feed)[0] for feed in feeds]
        assert len({value.tobytes() for value in alone}) == 12
        start = threading.Barrier(12)

        def work(client: int) -> bool:
            start.wait(60)
            for _ in range(20):
                (now,) = session.run(None, feeds[client])
                (later,) = session.run_async(None, feeds[client]).result(60)
                if not (np.allclose(now, alone[client], atol=1e-5) and np.array_equal(now, later)):
                    return False
            return True

        with ThreadPoolExecutor(12) as pool:
            assert all(pool.map(work, range(12)))


@pytest.mark.slow
@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name in ("mnn", "ncnn")])
def test_runtimes_that_never_run_at_once_answer_right_too(tmp_path: Path, runtime: str) -> None:
    if not here(runtime):
        pytest.skip("the runtime is missing")
    path = artifact(tmp_path, runtime)
    with collage.load(path, cache_dir=tmp_path / "cache", instances=2) as session:
        rng = np.random.default_rng(1)
        feeds = [{"x": rng.standard_normal((1, WIDTH), np.float32)} for _ in range(4)]
        alone = [session.run(None, feed)[0] for feed in feeds]
        futures = [session.run_async(None, feeds[i % 4]) for i in range(200)]
        for i, future in enumerate(futures):
            assert np.allclose(future.result(60)[0], alone[i % 4], atol=1e-5)


def test_closing_waits_for_requests_and_refuses_later_ones(tmp_path: Path) -> None:
    path = artifact(tmp_path, "onnxruntime")
    session = collage.load(path, cache_dir=False)
    feed = {"x": np.ones((1, WIDTH), np.float32)}
    futures = [session.run_async(None, feed) for _ in range(50)]
    session.close()
    assert len({future.result(0)[0].tobytes() for future in futures}) == 1
    with pytest.raises(BadInputError, match="closed"):
        session.run_async(None, feed)
    with pytest.raises(BadInputError, match="closed"):
        session.run(None, feed)
    session.close()


def test_a_request_that_cannot_be_computed_is_refused_at_once(tmp_path: Path) -> None:
    with collage.load(artifact(tmp_path, "onnxruntime"), cache_dir=False) as session:
        with pytest.raises(BadInputError, match="shape"):
            session.run_async(None, {"x": np.ones((2, WIDTH), np.float32)})
        with pytest.raises(BadInputError, match="unknown outputs"):
            session.run_async(["z"], {"x": np.ones((1, WIDTH), np.float32)})


@pytest.mark.slow
@pytest.mark.usefixtures("cores")
def test_an_artifact_says_how_many_instances_it_was_tuned_for(tmp_path: Path) -> None:
    path = artifact(tmp_path, "onnxruntime", instances=Instances(count=2, threads=4, cores=8))
    for cache in (
        tmp_path / "cache",
        tmp_path / "cache",
        False,
    ):  # unpacked, found again, without a cache
        with collage.load(path, cache_dir=cache) as session:
            assert (session.instances, session.threads) == (2, 4)
    with collage.load(path, instances=1, cache_dir=False) as session:
        assert (session.instances, session.threads) == (1, 8)


@pytest.mark.slow
def test_more_instances_than_cores_are_refused(tmp_path: Path) -> None:
    path = artifact(tmp_path, "onnxruntime")
    with pytest.raises(BadInputError, match="cores"):
        collage.load(path, instances=1000)


_RESIDENT = """
import sys, psutil, numpy as np
import collage, collage.artifact.session as module
module.default_threads = lambda: 4
session = collage.load(sys.argv[1], instances=int(sys.argv[2]), cache_dir=sys.argv[3])
feed = {"x": np.ones((1, int(sys.argv[4])), np.float32)}
futures = [session.run_async(None, feed) for _ in range(20)]
[future.result() for future in futures]
print(psutil.Process().memory_info().rss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_instances_share_their_weights(tmp_path: Path, runtime: str) -> None:
    if not here(runtime):
        pytest.skip("the runtime is missing")
    width, layers = 2048, 4
    weights = 4 * layers * width * width
    path = artifact(tmp_path, runtime, width=width, layers=layers)

    def resident(instances: int) -> int:
        words = [
            sys.executable,
            "-c",
            _RESIDENT,
            str(path),
            str(instances),
            str(tmp_path / "cache"),
            str(width),
        ]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, encoding="utf-8")
        return int(done.stdout.split()[-1])

    resident(1)  # fills the cache
    one, four = resident(1), resident(4)
    assert four - one < 0.5 * weights, (
        f"{one >> 20} MiB alone, {four >> 20} MiB with four, {weights >> 20} of weights"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("cores")
def test_pipeline_of_an_artifact_answers_as_one_instance_does(tmp_path: Path) -> None:
    planned = Instances(3, 4, 8, stages=(1, 2))
    targets = ("onnxruntime", "openvino", "onnxruntime") if here("openvino") else ("onnxruntime",) * 3
    path = artifact(tmp_path, *targets, instances=planned)
    feeds = [{"x": np.full((1, WIDTH), 0.01 * i, np.float32)} for i in range(24)]
    with collage.load(path, cache_dir=tmp_path / "cache", instances=1) as session:
        wanted = [session.run(None, feed)[0] for feed in feeds]
    for _ in range(2):  # the second one from the cache
        with collage.load(path, cache_dir=tmp_path / "cache") as session:
            assert (session.instances, session.threads) == (3, 4)
            futures = [session.run_async(None, feed) for feed in feeds]
            for future, expected in zip(futures, wanted, strict=True):
                np.testing.assert_allclose(future.result(60)[0], expected, atol=1e-5)
            with pytest.raises(BadInputError, match="must have shape"):
                session.run(None, {"x": np.zeros((2, WIDTH), np.float32)})
            with pytest.raises(BadInputError, match="keeps no state"):
                session.bind_output_to_input("x4", "x")
    with pytest.raises(BadInputError, match="closed"):
        session.run(None, feeds[0])


@pytest.mark.parametrize(
    "asked", [{"instances": 2}, {"threads": 1}, {"cores": 4}, {"planned": Instances(2, 4, 8)}]
)
def test_pipeline_gives_way_to_what_the_caller_or_the_machine_wants(asked: dict[str, Any]) -> None:
    planned = Instances(3, 4, 8, stages=(1, 2))
    usual: dict[str, Any] = {"instances": "auto", "threads": None, "planned": planned, "cores": 8}
    assert stages_here(**usual) == (1, 2) and divided(**usual) == (3, 4)
    assert stages_here(**usual | asked) == ()
    count, threads = divided(**usual | asked)
    assert count * threads <= (usual | asked)["cores"]


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        ({"count": 2, "threads": 1, "cores": 2, "stages": [1]}, "stages of 1 partitions, and 2"),
        ({"count": 2, "threads": 1, "cores": 2, "stages": [0, 2]}, "how many partitions each has"),
        ({"count": 2, "threads": 1, "cores": 2, "stages": "all"}, "how many partitions each has"),
        ({"count": 2, "threads": 1, "cores": 2, "rows": 0}, "each from 1 to"),
        ({"count": 2, "threads": 1}, "each from 1 to"),
        ([2, 1, 2], "each from 1 to"),
    ],
)
def test_instances_that_make_no_sense_are_refused(instances: object, said: str, tmp_path: Path) -> None:
    model = chain(tmp_path)
    every = model.index.all_nodes
    parts = (Candidate(3, Target("null")), Candidate(every & ~3, Target("null")))
    right = Instances(3, 1, 2, rows=4, stages=(1, 1))
    text = encode_plan(model, Plan(parts, instances=right))
    assert decode_plan(model, text).plan.instances == right
    content = json.loads(text) | {"instances": instances}
    with pytest.raises(BadInputError, match=said):
        decode_plan(model, json.dumps(content))

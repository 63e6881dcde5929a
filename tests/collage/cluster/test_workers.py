"""Tuning on workers of other machines: processes with homes of their own, joined by mutual TLS."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import collage
from benchmarks.support.zero_model import TARGETS, best_plan, zero_model
from collage.backends.sandbox.run import ChildLimits
from collage.cluster.connection import find_workers
from collage.cluster.dask_runner import DaskRunner
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from collage.partitioner.errors import BadInputError, CancelledError, TargetError
from collage.partitioner.target import Target
from collage.runner import NoWorkerError
from tests.backends.sandbox.child_tasks import copy_beside
from tests.hosts import Cluster
from tests.processes import children
from tests.service.conftest import small_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two machines, labeled `red` and `blue`; only `red` has OpenVINO."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), ["red", "blue"])
    try:
        made.work(made.host("red", "red"), "red")
        made.work(made.host("blue", "blue", without=["openvino"]), "blue")
        made.until(lambda workers: len(workers) == 2)
        yield made
    finally:
        made.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    path.write_bytes(small_model())
    return path


def _tune(cluster: Cluster, model: Path, targets: list[str], **more: Any) -> collage.Artifact:
    return collage.tune(
        model,
        targets,
        database=f"sqlite:///{model.parent / 'costs.db'}",
        scheduler=cluster.address,
        certificates=cluster.tuner,
        **{"time_limit_s": 60.0, **more},
    )


def _hosts(folder: Path) -> dict[str, set[str]]:
    """Labels of the machines that measured each backend."""
    found: dict[str, set[str]] = {}
    database = CostDatabase(f"sqlite:///{folder / 'costs.db'}")
    for row in database.query(CostFilter(), limit=1000).items:
        label = dict(row.hardware_description)["label"]
        found.setdefault(row.target.split()[0], set()).add(label)
    database.close()
    return found


def test_workers_announce_what_they_have(cluster: Cluster) -> None:
    blue, red = cluster.workers()
    assert (blue.name, red.name) == ("blue", "red")
    assert red.announced.resources.keys() >= {"slot", "cap:onnxruntime", "cap:openvino"}
    assert red.announced.resources["slot"] == 1
    assert "cap:openvino" not in blue.announced.resources
    assert "pip install openvino" in blue.announced.lacking["openvino"]
    assert (red.announced.hardware.label, blue.announced.hardware.label) == ("red", "blue")
    assert red.announced.kind != blue.announced.kind


def test_a_job_is_measured_where_its_targets_are(cluster: Cluster, model: Path) -> None:
    artifact = _tune(cluster, model, ["onnxruntime", "openvino"], strategy="single")
    assert _hosts(model.parent) == {"onnxruntime": {"red"}, "openvino": {"red"}}
    assert artifact.report["machine"]["label"] == "red"
    x = np.ones((1, 3, 16, 16), np.float32)
    with collage.load(artifact.path) as session:
        (y,) = session.run(None, {"x": x})
    assert y.sum() == pytest.approx(1.0, abs=1e-5)


def test_host_chooses_among_kinds_and_costs_never_mix(cluster: Cluster, tmp_path: Path) -> None:
    model = tmp_path / "zero.onnx"
    model.write_bytes(zero_model())
    counts = []
    for label in ("red", "blue", "blue"):
        targets = [TARGETS[0] + f" -host={label}", *TARGETS[1:]]
        where = tmp_path / f"{label}.onnx"
        artifact = _tune(cluster, model, targets, output=where)
        assert artifact.report["machine"]["label"] == label
        plan = [
            (tuple(part["nodes"]), part["target"].replace(f" -host={label}", ""))
            for part in artifact.plan["partitions"]
        ]
        wanted = [(nodes, str(Target.parse(target))) for nodes, target in best_plan()]
        assert [(nodes, str(Target.parse(target))) for nodes, target in plan] == wanted
        counts.append(artifact.report["candidates"])
    assert _hosts(tmp_path) == {"null": {"red", "blue"}}
    # Of another kind of machine nothing is known; the same kind shares what it measured.
    assert counts[0]["from_cache"] == counts[1]["from_cache"] == 0
    assert counts[2]["from_cache"] >= counts[1]["measured"] > 0


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["torch"], "no worker has torch .*blue: it lacks torch .*; start a worker"),
        (["openvino -host=blue"], "on -host=blue .*blue: it lacks openvino.*red: its label is 'red'"),
        (["onnxruntime -host=green"], "its label is 'red', not 'green'"),
    ],
)
def test_target_that_no_worker_has_is_refused_at_once(
    cluster: Cluster, model: Path, targets: list[str], said: str
) -> None:
    begin = time.monotonic()
    with pytest.raises(NoWorkerError, match=said):
        _tune(cluster, model, targets)
    assert time.monotonic() - begin < 60


def test_a_plan_never_spans_machines(cluster: Cluster, model: Path) -> None:
    with pytest.raises(BadInputError, match="a plan runs in one process on one machine"):
        _tune(cluster, model, ["onnxruntime -host=red", "openvino -host=blue"])


def test_target_that_no_worker_supports_is_refused_with_the_reason(cluster: Cluster) -> None:
    with (
        DaskRunner(cluster.address, cluster.tuner) as runner,
        pytest.raises(TargetError, match=r"on the workers: .*CUDAExecutionProvider"),
    ):
        runner.check([Target.parse("onnxruntime -ep=cuda")])


def test_waiting_for_a_worker_ends_with_the_time_or_with_cancel(cluster: Cluster) -> None:
    said: list[str] = []
    wanted = [Target.parse("onnxruntime -host=green")]
    with DaskRunner(cluster.address, cluster.tuner, wait_s=1, say=said.append) as runner:
        begin = time.monotonic()
        with pytest.raises(NoWorkerError, match="waited 1 s for one"):
            runner.check(wanted)
        assert time.monotonic() - begin >= 1
    assert len(said) == 1 and "waiting 1 s" in said[0]
    cancel = threading.Event()
    cancel.set()
    with (
        DaskRunner(cluster.address, cluster.tuner, wait_s=60, cancel=cancel) as runner,
        pytest.raises(CancelledError),
    ):
        runner.check(wanted)


def test_cancel_stops_the_remote_child(cluster: Cluster) -> None:
    with DaskRunner(cluster.address, cluster.tuner) as runner:
        runner.check([Target.parse("onnxruntime -host=red")])
        cancel = threading.Event()
        failed: list[CancelledError] = []

        def run() -> None:
            try:
                runner.run(time.sleep, 60.0, limits=ChildLimits(timeout_s=100), cancel=cancel)
            except CancelledError as failure:
                failed.append(failure)

        before = _children(cluster)
        thread = threading.Thread(target=run)
        thread.start()
        deadline = time.monotonic() + 20
        while not (new := _children(cluster) - before):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        cancel.set()
        _, alive = psutil.wait_procs(list(new), timeout=20)
        thread.join(10)
        assert not alive and len(failed) == 1
        # The slot is free again.
        assert runner.run(max, 1, 2, limits=ChildLimits(timeout_s=30)) == 2


def test_files_come_and_go_by_content(cluster: Cluster, tmp_path: Path) -> None:
    given, made = tmp_path / "given", tmp_path / "made"
    given.mkdir()
    made.mkdir()
    big = np.random.default_rng(0).bytes(20 << 20)
    (given / "a.bin").write_bytes(big)
    (given / "beside.txt").write_text("beside", encoding="utf-8")
    with DaskRunner(cluster.address, cluster.tuner) as runner:
        runner.check([Target.parse("onnxruntime -host=blue")])
        found = runner.run(copy_beside, given / "a.bin", made)
    assert found == [made / "a.bin", made / "beside.txt"]
    assert (made / "a.bin").read_bytes() == big and (made / "beside.txt").read_text(
        encoding="utf-8"
    ) == "beside"


def test_only_certificates_of_the_authority_open_the_door(cluster: Cluster, tmp_path: Path) -> None:
    from collage.cluster.certificates import make_certificates
    from collage.cluster.connection import ClusterError

    (stranger,) = make_certificates(tmp_path / "other", ["stranger"])
    with pytest.raises(ClusterError, match="cannot be reached"):
        find_workers(cluster.address, stranger)
    with pytest.raises(BadInputError, match="needs certificates"):
        find_workers(cluster.address, None)
    with pytest.raises(ClusterError, match="cannot be reached"):
        find_workers(cluster.address.replace("tls", "tcp"), None)


def test_no_other_port_is_open(cluster: Cluster) -> None:
    """Dask's own pages would show everything to everybody."""
    found: list[str] = []
    for process in psutil.process_iter(["cmdline"]):
        if str(cluster.folder) not in " ".join(process.info["cmdline"] or ()):
            continue
        try:
            open_ones = [c for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
        except psutil.NoSuchProcess:
            continue
        assert [c.laddr.ip for c in open_ones] in ([], ["127.0.0.1"]), process.info["cmdline"]
        found += [c.laddr.ip for c in open_ones]
    assert found, "the scheduler and the workers were not looked at"


def test_the_command_line_tunes_on_workers(cluster: Cluster, tmp_path: Path) -> None:
    model = tmp_path / "zero.onnx"
    model.write_bytes(zero_model())
    host = cluster.host("laptop", without=["openvino"])
    where = ["--scheduler", cluster.address, "--certificates", str(cluster.tuner)]
    targets = [part for target in TARGETS for part in ("-t", target)]
    report = tmp_path / "report.json"
    done = host.run(
        "tune", str(model), *targets, *where, "--report", str(report), "--strategy", "greedy"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text(encoding="utf-8"))["machine"]["label"] in ("red", "blue")
    done = host.run("tune", str(model), "-t", "torch", *where)
    assert done.returncode == 1 and "no worker has torch" in done.stderr


def test_without_dask_the_command_line_says_what_to_install(cluster: Cluster) -> None:
    host = cluster.host("plain", without=["distributed", "dask", "cryptography"])
    done = host.run("worker", "--scheduler", "tcp://127.0.0.1:1")
    assert done.returncode == 2 and "pip install 'collage-tuner[workers]'" in done.stderr


def _children(cluster: Cluster) -> set[psutil.Process]:
    """Sandboxed children of the workers."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "worker" in command and cluster.address in command:
            for fork_server in children(process):
                found.update(children(fork_server))
    return found

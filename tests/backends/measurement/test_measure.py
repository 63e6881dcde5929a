"""Measurements: real runtimes give a time, every fault gives its reason, nothing else is disturbed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from collage.backends.contract import OpTime, SubModel
from collage.backends.measurement import child
from collage.backends.measurement.buffers import aligned
from collage.backends.measurement.measure import (
    Measurement,
    MeasureRequest,
    measure,
)
from collage.backends.measurement.protocol import Protocol
from collage.backends.numerics.reference import run_reference
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.sandbox.landlock import confinable
from collage.backends.sandbox.run import protections, run_in_child
from collage.backends.sandbox.seccomp import filterable
from collage.partitioner.cost import Infeasible, Measured
from collage.partitioner.errors import CancelledError, CollageError, OutOfTimeError, TargetError
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.backends.sandbox.attacks import Around

pytestmark = pytest.mark.slow  # each starts children, some of which wait

QUICK = Protocol(min_s=0.01, max_s=0.05, warm_up_s=0.002, retries=0)


def _request(tmp_path: Path, target: str, size: int = 8, name: str = "m") -> MeasureRequest:
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[{size}] x) => (float[{size}] y) {{ y = Add(x, x) }}"""
    return _from_text(tmp_path / name, text, (size,), target)


def _from_text(folder: Path, text: str, shape: tuple[int, ...], target: str) -> MeasureRequest:
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    specs = (TensorSpec("x", "float32", shape),)
    samples = [seeded_inputs(specs, seed) for seed in (0, 1)]
    write_samples(folder / "inputs.npz", samples)
    made = [run_in_child(run_reference, path, sample, ["y"]) for sample in samples]
    write_samples(folder / "expected.npz", made)
    outputs = (TensorSpec("y", "float32", made[0]["y"].shape),)
    return MeasureRequest(
        target=Target.parse(target),
        model=SubModel(path, specs, outputs),
        inputs_path=folder / "inputs.npz",
        expected_path=folder / "expected.npz",
        tolerance=1e-3,
        threads=1,
        protocol=QUICK,
    )


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faulty backend, installed as a plugin for this process and its children."""
    info = tmp_path / "site" / "faulty-6.66.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: faulty\nVersion: 6.66\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[collage.backends]\nfaulty = tests.backends.faulty:FaultyBackend\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def _reason(measurement: Measurement) -> str:
    assert isinstance(measurement.cost, Infeasible), measurement
    return measurement.cost.reason


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_real_runtime_is_measured(tmp_path: Path, target: str) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g (float[1,8,16,16] x) => (float[1,8,16,16] y) { s = Sigmoid(x) y = Mul(s, x) }"""
    request = _from_text(tmp_path / "m", text, (1, 8, 16, 16), target)
    found = measure(request)
    assert isinstance(found.cost, Measured), found.cost
    assert 0 < found.cost.latency_us < 1e5
    assert found.cost.samples == len(found.samples_us) >= QUICK.min_runs
    assert found.compile_s > 0
    assert found.peak_memory_bytes > 1 << 20
    assert found.error is not None and found.error < 1e-5
    assert found.yardstick_us > 0
    assert found.versions.keys() == {target}


def test_the_time_is_that_of_one_call(tmp_path: Path, faulty: None) -> None:
    found = measure(_request(tmp_path, "faulty -sleep_us=3000"))
    assert isinstance(found.cost, Measured)
    assert 3000 < found.cost.latency_us < 30_000
    found = measure(_request(tmp_path, "faulty -sleep_us=100", name="fast"))
    assert isinstance(found.cost, Measured)
    assert 100 < found.cost.latency_us < 3000


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuse", "refused: compile: no kernel for this operator"),
        ("crash-compile", "crash: SIGSEGV (while compiling)"),
        ("crash-run", "crash: SIGABRT (while verifying)"),
        ("hang", "hang: not done after 1 s (while verifying)"),
        ("memory", "out of memory: run: Unable to allocate 8.00 TiB"),
        ("wrong", "wrong result: 'y' on sample 0: error"),
        ("wrong-second", "wrong result: 'y' on sample 1: error"),
        ("wrong-later", "wrong result: 'y' after"),
        ("silent", "wrong result: 'y' on sample 0: it is NaN or infinite"),
    ],
)
def test_each_fault_has_its_reason(tmp_path: Path, faulty: None, fault: str, reason: str) -> None:
    timeout_s = 1.0 if fault == "hang" else 30.0
    request = replace(_request(tmp_path, f"faulty -fault={fault}"), timeout_s=timeout_s)
    found = measure(request)
    assert _reason(found).startswith(reason)
    assert found.versions == {"faulty": "6.66"}
    assert "\n" not in _reason(found)


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("Failed to allocate 8 TiB", "out of memory"),
        ("when calling with pre-allocated outputs", "refused"),
    ],
)
def test_only_a_failed_allocation_is_out_of_memory(text: str, category: str) -> None:
    def fails() -> None:
        raise RuntimeError(text)

    with pytest.raises(Exception, match=f"^{category}: run: "):
        child._attempt("run", fails)


@pytest.mark.skipif(not (confinable() and filterable()), reason="needs Landlock and seccomp")
def test_attack_while_compiling_is_refused(tmp_path: Path, faulty: None) -> None:
    request = _request(tmp_path, "faulty -fault=attack")
    shared = Path("/dev/shm") / f"collage-test-{os.getpid()}"
    shared.touch(0o600)
    (tmp_path / "secret").write_text("password", encoding="utf-8")
    with (
        socket.socket(socket.AF_UNIX) as server,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        subprocess.Popen(["sleep", "60"]) as sibling,
    ):
        server.bind(str(tmp_path / "socket"))
        server.listen()
        around = Around(
            owner=os.getpid(),
            sibling=sibling.pid,
            socket_path=str(tmp_path / "socket"),
            abstract_name=str(tmp_path / "socket"),
            datagram_path=str(tmp_path / "socket"),
            tcp_port=tcp.getsockname()[1],
            shared_memory=str(shared),
            secret=str(tmp_path / "secret"),
        )
        (request.model.path.parent / "around.json").write_text(
            json.dumps(asdict(around)), encoding="utf-8"
        )
        reason = _reason(measure(request))
        sibling.kill()
    shared.unlink()
    if not protections().no_capabilities:
        assert reason == "refused: compile: attacks that worked: have capabilities"
    else:
        assert reason == "refused: compile: attacks that worked: none"


def test_a_crash_at_the_end_is_a_crash(tmp_path: Path, faulty: None) -> None:
    assert "while closing" in _reason(measure(_request(tmp_path, "faulty -fault=crash-close")))


@pytest.mark.parametrize(
    ("fault", "words"), [("no-profile", "no profiler here"), ("crash-profile", "SIGSEGV")]
)
def test_a_profiler_that_fails_costs_only_the_profile(
    tmp_path: Path, faulty: None, fault: str, words: str
) -> None:
    found = measure(replace(_request(tmp_path, f"faulty -fault={fault}"), profile=True))
    assert isinstance(found.cost, Measured)
    assert found.ops == ()
    assert words in found.profile_failure


def test_a_profile_comes_back(tmp_path: Path, faulty: None) -> None:
    found = measure(replace(_request(tmp_path, "faulty"), profile=True))
    assert found.ops[0] == OpTime(("n",), "Add", 1.0)
    assert found.profile_failure == ""


def test_a_killed_child_says_nothing_about_the_candidate(tmp_path: Path, faulty: None) -> None:
    mark = tmp_path / "cache" / "mark"
    mark.parent.mkdir()
    request = _request(tmp_path, f"faulty -fault=killed -once={mark}")
    found = measure(replace(request, cache_dir=mark.parent))
    assert isinstance(found.cost, Measured)
    with pytest.raises(CollageError, match="interrupted 3 times"):
        measure(_request(tmp_path, "faulty -fault=killed", name="again"))


def test_an_unknown_target_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="unknown backend"):
        measure(_request(tmp_path, "nosuchruntime"))


def test_cancel(tmp_path: Path, faulty: None) -> None:
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    begin = time.monotonic()
    with pytest.raises(CancelledError):
        measure(_request(tmp_path, "faulty -fault=hang"), cancel)
    assert time.monotonic() - begin < 20


def test_outputs_of_unknown_shape(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g (float[16] x) => (int64[1, n] y) { y = NonZero(x) }"""
    request = _from_text(tmp_path / "m", text, (16,), "onnxruntime")
    outputs = (TensorSpec("y", "int64", (1, None)),)
    found = measure(replace(request, model=replace(request.model, outputs=outputs)))
    assert isinstance(found.cost, Measured), found.cost
    assert found.error == 0


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_buffers_are_aligned(dtype: str) -> None:
    for shape in ((), (3,), (0, 2), (5, 7)):
        buffer = aligned(shape, np.dtype(dtype))
        assert (buffer.shape, buffer.dtype.name) == (shape, dtype)
        assert buffer.size == 0 or buffer.ctypes.data % 64 == 0


def test_a_measurement_over_its_limit_says_nothing_of_the_target(tmp_path: Path, faulty: None) -> None:
    request = replace(_request(tmp_path, "faulty -fault=hang"), limit_s=0.5)
    begin = time.monotonic()
    with pytest.raises(OutOfTimeError, match="not done after 1 s"):
        measure(request)
    assert time.monotonic() - begin < 20


def test_a_slow_model_is_called_less_often_within_a_limit(tmp_path: Path, faulty: None) -> None:
    """Two calls verify it, two warm up, two are timed and one verifies again; there is no time for a profile."""
    slow = _request(tmp_path, "faulty -sleep_us=500000")
    protocol = Protocol(retries=0)
    found = measure(replace(slow, protocol=protocol, limit_s=4.0, profile=True))
    assert isinstance(found.cost, Measured) and found.cost.samples < protocol.min_runs
    assert not found.ops and "no time" in found.profile_failure and found.cut_short
    free = measure(replace(slow, protocol=protocol, profile=True))
    assert isinstance(free.cost, Measured) and free.cost.samples >= protocol.min_runs
    # Ten runs of a slow model would take long, so fewer are profiled.
    assert 1 <= len(free.ops) <= 5 and not free.cut_short

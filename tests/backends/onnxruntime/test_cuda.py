"""Targets on a CUDA device: conformance and what is theirs alone; skipped with the reason where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.registry import resolve
from collage.backends.sandbox.run import ChildLimits, run_in_child
from collage.backends.support.ort_session import PROVIDERS, ort
from collage.backends.testing.conformance import BackendConformance
from collage.backends.torch.backend import TorchBackend
from collage.partitioner.errors import TargetError
from collage.partitioner.target import Target
from tests.backends.onnxruntime import cuda_tasks
from tests.tuning import tuned

ORT, ORT_GRAPHS = "onnxruntime -ep=cuda", "onnxruntime -ep=cuda -graphs=on"
EAGER, INDUCTOR = "torch -compiler=eager -device=cuda", "torch -device=cuda"
INDUCTOR_GRAPHS = "torch -device=cuda -graphs=on"
ALL = (ORT, ORT_GRAPHS, EAGER, INDUCTOR, INDUCTOR_GRAPHS)
pytestmark = pytest.mark.slow  # CUDA's start


def need(*targets: str) -> None:
    for target in targets:
        try:
            resolve(Target.parse(target))
        except TargetError as error:
            pytest.skip(str(error))


class TestOnnxRuntimeOnCuda(BackendConformance):
    backend = OnnxRuntimeBackend()
    target_options = "-ep=cuda"
    isolated = True


class TestOnnxRuntimeGraphs(TestOnnxRuntimeOnCuda):
    target_options = "-ep=cuda -graphs=on"


class TestTorchOnCuda(BackendConformance):
    backend = TorchBackend()
    target_options = "-compiler=eager -device=cuda"
    isolated = True


class TestInductorOnCuda(TestTorchOnCuda):
    target_options = "-device=cuda"


class TestInductorGraphs(TestTorchOnCuda):
    target_options = "-device=cuda -graphs=on"


@pytest.mark.parametrize("target", ALL)
def test_values_stay_on_the_device(target: str) -> None:
    need(target)
    run_in_child(cuda_tasks.check_residence, target, target, limits=ChildLimits(memory_bytes=0))


@pytest.mark.parametrize(
    ("first", "second"), [(ORT, EAGER), (EAGER, ORT), (ORT_GRAPHS, INDUCTOR_GRAPHS)]
)
def test_runtimes_share_the_device(first: str, second: str) -> None:
    need(first, second)
    run_in_child(cuda_tasks.check_residence, first, second, limits=ChildLimits(memory_bytes=0))


@pytest.mark.parametrize("target", [ORT, EAGER])
def test_products_round_to_tf32_only_where_asked(target: str) -> None:
    need(target)
    errors = [
        run_in_child(cuda_tasks.product_error, text, limits=ChildLimits(memory_bytes=0))
        for text in (target, f"{target} -tf32=on")
    ]
    assert errors[0] < 1e-5 < 1e-4 < errors[1] < 1e-2


def test_a_mix_of_host_and_device_is_tuned_and_runs(tmp_path: Path) -> None:
    need(ORT, EAGER)
    # The second node is pinned to the host, so that values must go there and back.
    host = "onnxruntime -opt=none"
    pins = [f"a={ORT}", f"b={host}", f"c={EAGER}"]
    artifact = tuned(onnx.parser.parse_model(cuda_tasks.NET), [host, ORT, EAGER], tmp_path, pins=pins)
    assert len(artifact.plan["partitions"]) == 3
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    with collage.load(artifact.path) as session:
        (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, np.tanh(np.sin(np.tanh(x))), rtol=1e-4, atol=1e-6)


def test_a_device_that_is_not_there_is_refused() -> None:
    if PROVIDERS["cuda"] not in ort().get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA")
    with pytest.raises(TargetError, match=r"CUDA devices, so there is no device 63"):
        resolve(Target.parse(f"{ORT} -device=63"))

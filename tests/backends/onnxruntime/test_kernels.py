"""What is asked of a build of ONNX Runtime, and what of a table; a device that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from onnxruntime.capi import _pybind_state

from collage.backends.device_memory import cuda_devices
from collage.backends.onnxruntime import kernels
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.support import ort_session
from collage.backends.testing.conformance import BackendConformance
from collage.partitioner.target import Target
from tests.partitioner.graphs import text_model

_POOL = "g (float[1,2,4,4] x) => (float[1,2,2,2] y) { y = MaxPool<kernel_shape = [3,3]>(x) }"
_CUDA = "onnxruntime -ep=cuda"


def _refusal(text: str, ep: str, opset: int = 20) -> str | None:
    index = text_model(text, opset).index
    return kernels.refusal(index, index.nodes[0], ep)


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build with CUDA, whose kernels cannot be asked for: the real one crashes."""

    def crash() -> None:
        raise AssertionError("this build must not be asked")

    present = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort_session.ort(), "get_available_providers", lambda: present)
    monkeypatch.setattr(_pybind_state, "get_all_opkernel_def", crash)
    kernels._cpu_kernels.cache_clear()
    yield
    kernels._cpu_kernels.cache_clear()


def test_build_with_other_providers_is_not_asked_for_kernels(with_cuda: None) -> None:
    text = "g (int32[4] x) => (int32[4] y) { y = Erf(x) }"
    assert _refusal(text, "cpu") is None  # compiling decides
    assert "does not know" in str(_refusal("g (float[4] x) => (float[4] y) { y = Nothing(x) }", "cpu"))


def test_a_build_for_the_cpu_is_asked() -> None:
    text = "g (int32[4] x) => (int32[4] y) { y = Erf(x) }"
    assert _refusal(text, "cpu") == "onnxruntime has no kernel for Erf of int32"


def test_cuda_supports_the_operators_and_versions_of_its_table() -> None:
    assert _refusal(_POOL, "cuda", 21) is None
    assert "no cuda kernel for MaxPool of opset 22" in str(_refusal(_POOL, "cuda", 22))
    assert "no cuda kernel for Tan" in str(
        _refusal("g (float[4] x) => (float[4] y) { y = Tan(x) }", "cuda")
    )
    gelu = "g (float[4] x) => (float[4] y) { y = com.microsoft.Gelu(x) }"
    assert _refusal(gelu, "cuda") is None


@pytest.mark.skipif(cuda_devices() > 0, reason="there is a CUDA device here")
def test_missing_device_is_refused_though_its_provider_is_built_in(
    with_cuda: None,
) -> None:
    backend = OnnxRuntimeBackend()
    assert "0 CUDA devices" in str(backend.check_target(Target.parse(_CUDA)))


def test_options_of_cuda_are_refused_elsewhere() -> None:
    backend = OnnxRuntimeBackend()
    for option in ("tf32", "graphs"):
        assert "-ep=cuda" in str(backend.check_target(Target.parse(f"onnxruntime -{option}=on")))
    assert backend.arithmetic(Target.parse(f"{_CUDA} -tf32=on")).numbers == "tf32"
    assert backend.arithmetic(Target.parse(_CUDA)).numbers == "f32"


class InAPlaceOfItsOwn(OnnxRuntimeBackend):
    """Values lie in memory of the session's own, as on a device, which is the CPU's here."""

    def memory_domain(self, target: Target) -> str:
        return "cuda:0"


class TestValuesOnADevice(BackendConformance):
    backend = InAPlaceOfItsOwn()

    @pytest.fixture(autouse=True)
    def _on_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("collage.backends.onnxruntime.device._KIND", "cpu")

"""torch: conformance without the compiler, which is slow, and a few cases with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.backends import registry
from collage.backends.contract import Available
from collage.backends.sandbox.run import run_in_child
from collage.backends.testing.conformance import BackendConformance
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import buffers, check_numbers, compiled, prepare
from collage.backends.torch.backend import TorchBackend
from collage.partitioner.errors import TargetError
from collage.partitioner.target import Target
from tests.partitioner.graphs import text_model

BACKEND = TorchBackend()
needs_torch = pytest.mark.skipif(
    not isinstance(BACKEND.probe(), Available), reason="torch and onnx2fx are not installed"
)


@pytest.mark.slow
class TestTorchEager(BackendConformance):
    backend = BACKEND
    target_options = "-compiler=eager"
    isolated = True


@needs_torch
@pytest.mark.slow
def test_inductor_computes_the_same() -> None:
    target = Target.parse("torch")
    if BACKEND.check_target(target) is not None:
        pytest.skip("there is no C++ compiler")
    run_in_child(check_numbers, BACKEND, target, "conv_block", 1e-3)


def test_inductor_without_a_compiler_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    reason = BACKEND.check_target(Target.parse("torch"))
    assert reason is not None and "g++" in reason
    assert BACKEND.check_target(Target.parse("torch -compiler=eager")) is None


@needs_torch
@pytest.mark.slow
def test_a_device_that_is_not_there_is_refused_with_the_reason() -> None:
    with pytest.raises(TargetError, match="cuda:63"):
        registry.resolve(Target.parse("torch -compiler=eager -device=cuda:63"))
    assert BACKEND.memory_domain(Target.parse("torch -device=cuda:1")) == "cuda:1"


def test_small_regions_are_not_worth_compiling() -> None:
    steps = " ".join(f"v{i} = Relu({f'v{i - 1}' if i else 'x'})" for i in range(16))
    index = text_model(f"g (float[4] x) => (float[4] v15) {{ {steps} }}").index
    target = Target.parse("torch")
    assert BACKEND.refuse_region(index, 0b1111, target) is None
    assert "1/4 of a model" in (BACKEND.refuse_region(index, 0b111, target) or "")
    assert np.all([BACKEND.supports(index, i, target) is None for i in range(16)])


@needs_torch
@pytest.mark.slow
def test_torch_uses_float32_own_threads_and_no_compiler_pool() -> None:
    inductor = BACKEND.check_target(Target.parse("torch")) is None
    run_in_child(_check_manners, "torch -threads=1" if inductor else "torch -compiler=eager -threads=1")


def _check_manners(target: str) -> None:
    import psutil
    import torch

    prepared = prepare(next(case for case in CASES if case.name == "dense"), Path.cwd())
    executable = compiled(BACKEND, Target.parse(target), prepared.model, Path.cwd())
    executable.bind(prepared.inputs, buffers(prepared))
    torch.set_num_threads(2)  # as another executable of the same process would
    executable.run()
    assert torch.get_num_threads() == 1
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    left = [p.name() for p in psutil.Process().children(recursive=True) if p.status() != "zombie"]
    assert not left, f"compiling left processes: {left}"
    executable.close()

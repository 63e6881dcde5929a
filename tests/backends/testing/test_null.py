"""The null backend: zeros after a stated time."""

import time
from pathlib import Path

import numpy as np
import pytest

from collage.backends import registry
from collage.backends.contract import Backend
from collage.backends.testing.conformance import BackendConformance
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import compiled, prepare
from collage.backends.testing.null import NullBackend
from collage.partitioner.target import Target


class TestNull(BackendConformance):
    """It computes zeros, so no number can be right: the checks of numbers expect that."""

    backend: Backend = NullBackend()
    tolerance = float("inf")

    @pytest.mark.skip("zeros have the shape of the spec only")
    def test_outputs_of_its_own(self) -> None: ...  # type: ignore[override]

    @pytest.mark.skip("its profile stands for no node")
    def test_profile(self) -> None: ...  # type: ignore[override]


def test_a_call_takes_the_time_given_and_makes_zeros(tmp_path: Path) -> None:
    prepared = prepare(CASES[0], tmp_path)
    target = Target.parse("null -latency_us=3000")
    executable = compiled(NullBackend(), target, prepared.model, tmp_path)
    output = np.ones_like(prepared.expected[0])
    executable.bind(prepared.inputs, [output])
    start = time.perf_counter()
    executable.run()
    assert time.perf_counter() - start >= 0.003
    assert not output.any()


def test_null_supports_only_the_stated_operators() -> None:
    spec = registry.target_spec(Target.parse("null -ops=Conv,Relu -domain=sim:0"))
    assert spec.memory_domain == "sim:0"
    index = _index()
    assert [spec.supports(index, i) for i in range(2)] == [
        None,
        "-ops of this target does not name MaxPool",
    ]


def _index():  # type: ignore[no-untyped-def]
    from tests.partitioner.graphs import text_model

    text = """g (float[1,2,4,4] x) => (float[1,2,2,2] y) {
        r = Relu(x)
        y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)
    }"""
    return text_model(text).index

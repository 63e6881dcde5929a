"""MNN: what every backend must do, and the names in its profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.conformance import BackendConformance, buffers, compiled, prepare
from backends.conformance_cases import CASES
from backends.contract import Available
from backends.mnn_backend import MnnBackend
from partitioner.target import Target

BACKEND = MnnBackend()


class TestMnn(BackendConformance):
    backend = BACKEND


@pytest.mark.skipif(not isinstance(BACKEND.probe(), Available), reason="MNN is not installed")
@pytest.mark.parametrize(("case", "op"), [("grouped_conv", "Conv"), ("dense", "MatMul")])
def test_steps_that_the_converter_renames_are_found_again(case: str, op: str, tmp_path: Path) -> None:
    # A grouped convolution becomes one step a group, a product with constant weights a convolution.
    (chosen,) = (c for c in CASES if c.name == case)
    prepared = prepare(chosen, tmp_path)
    executable = compiled(BACKEND, Target("mnn"), prepared.model, tmp_path)
    executable.bind(prepared.inputs, buffers(prepared))
    steps = executable.profile(2)
    executable.close()
    kinds = [step.kind for step in steps if any(op in node for node in step.nodes)]
    assert "Convolution" in kinds

"""A partition in int8 may keep nodes float where its kind of int8 needs samples."""

from __future__ import annotations

import pytest

from collage.backends.registry import backend_of
from collage.backends.testing.conformance import BackendConformance
from collage.partitioner.target import Target


@pytest.mark.parametrize(
    ("text", "mixes"),
    [
        ("openvino -quant=static_int8", True),
        ("openvino -quant=weights_int8", True),
        ("onnxruntime -quant=static_int8", True),
        ("ncnn -quant=static_int8", True),
        ("onnxruntime -quant=dynamic_int8", False),
    ],
)
def test_int8_mixes_with_its_own_runtime_in_float(text: str, mixes: bool) -> None:
    target = Target.parse(text)
    backend, plain = backend_of(target), Target(target.backend)
    assert backend.unprepared(target) == plain
    assert backend.mixes_with(target, plain) == mixes
    assert not backend.mixes_with(plain, target) and not backend.mixes_with(plain, plain)
    assert not backend.mixes_with(target, Target("mnn"))
    assert (backend.mix(target, 0b1100, 0b1000) == target.with_options(float="1")) == mixes
    suite = BackendConformance()
    suite.backend, suite.target_options = backend, text.partition(" ")[2]
    suite.test_mixing_is_undone_by_unmixing()

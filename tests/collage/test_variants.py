"""Single targets are timed on one thread, too, where a call is short; and rewritten (test_rewritten)."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from collage.intake import take_in
from collage.variants import single_variants
from partitioner.model import Model
from partitioner.target import Target
from tests.channels_last import channels_last_model

ORT, OPENVINO, MNN = (Target.parse(name) for name in ("onnxruntime", "openvino", "mnn"))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    onnx.save(channels_last_model(), tmp_path / "m.onnx")
    return take_in(tmp_path / "m.onnx", tmp_path)[0]


def _found(
    model: Model, targets: list[Target], alone_us: dict[Target, float], threads: int = 2
) -> list[str]:
    entries = single_variants(model, targets, alone_us, threads)
    assert all(entry.plan.partitions[0].nodes == model.index.all_nodes for entry in entries)
    return [entry.name for entry in entries]


def test_short_calls_are_tried_on_one_thread_and_the_fastest_come_first(model: Model) -> None:
    alone_us = {ORT: 900.0, OPENVINO: 300.0, MNN: 2500.0}
    assert _found(model, [ORT, OPENVINO, MNN], alone_us) == [
        "single openvino -threads=1",
        "single onnxruntime -threads=1",
        "single openvino -rewrite=on",
        "single mnn -rewrite=on",
    ]


def test_a_stated_number_of_threads_stays_and_so_does_one_thread_for_all(model: Model) -> None:
    stated = OPENVINO.with_options(threads="2")
    alone_us = {ORT: 900.0, stated: 300.0}
    assert _found(model, [ORT, stated], alone_us)[0] == "single onnxruntime -threads=1"
    assert not any("threads=1" in name for name in _found(model, [ORT, stated], alone_us, threads=1))


def test_what_could_not_be_measured_alone_is_not_tried_on_one_thread(model: Model) -> None:
    assert _found(model, [ORT, MNN], {MNN: 100.0})[0] == "single mnn -threads=1"
    assert len(_found(model, [ORT, MNN], {MNN: 100.0})) == 2

"""Single targets are timed on one thread, too, where a call is short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from collage.model.reference import ingest
from collage.partitioner.target import Target
from collage.refinement.one_thread import on_one_thread
from tests.channels_last import channels_last_model

ORT, OPENVINO, MNN = (Target.parse(name) for name in ("onnxruntime", "openvino", "mnn"))
Found = Callable[..., list[str]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """The names of what is proposed for targets, which cover the model."""
    onnx.save(channels_last_model(), tmp_path / "m.onnx")
    model = ingest(tmp_path / "m.onnx", tmp_path)[0]

    def names(targets: list[Target], alone_us: dict[Target, float], threads: int = 2) -> list[str]:
        entries = on_one_thread(model, targets, threads, alone_us)
        covered = [[p.nodes for p in entry.plan.partitions] for entry in entries]
        assert covered == [[model.index.all_nodes]] * len(entries)
        return [entry.name for entry in entries]

    return names


def test_short_calls_are_tried_in_the_order_of_the_targets(found: Found) -> None:
    alone_us = {ORT: 900.0, OPENVINO: 300.0, MNN: 2500.0}
    proposed = found([OPENVINO, MNN, ORT], alone_us)
    assert proposed == ["single openvino -threads=1", "single onnxruntime -threads=1"]


def test_stated_threads_stay_and_one_thread_for_all_stays(found: Found) -> None:
    stated = OPENVINO.with_options(threads="2")
    alone_us = {ORT: 900.0, stated: 300.0}
    assert found([stated, ORT], alone_us) == ["single onnxruntime -threads=1"]
    assert found([stated, ORT], alone_us, threads=1) == []


def test_target_that_failed_alone_is_not_tried_on_one_thread(found: Found) -> None:
    assert found([ORT, MNN], {MNN: 100.0}) == ["single mnn -threads=1"]

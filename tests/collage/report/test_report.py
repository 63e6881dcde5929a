"""What a report tells of the values between partitions, from a tuning on memories of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import collage
from benchmarks.support.zero_model import FAST_CONV, FAST_POOL, SLOW, best_plan, zero_model
from collage.service.report_models import TransferView
from collage.service.storage.partition_graph import partition_graph


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["sim:0", "host"])
def test_transfers_have_bytes_and_time(tmp_path: Path, domain: str) -> None:
    (tmp_path / "zero.onnx").write_bytes(zero_model())
    there = f"{FAST_POOL} -domain={domain}"
    artifact = collage.tune(
        tmp_path / "zero.onnx",
        [FAST_CONV, there, SLOW],
        output=tmp_path / "tuned.onnx",
        database=f"sqlite:///{tmp_path / 'c.db'}",
        pins=["Conv=" + FAST_CONV, "Relu=" + FAST_CONV, "MaxPool=" + there, "Tanh=" + there],
    )
    transfers = artifact.report["transfers"]
    count = len(best_plan())
    assert [(each["from"], each["to"]) for each in transfers] == [(i, i + 1) for i in range(count - 1)]
    for each in transfers:
        TransferView.model_validate(each, strict=True)
        assert each["bytes"] > 0
        assert (each["latency_us"] > 0) is (domain != "host")
    edges = partition_graph(artifact.path)["edges"]
    drawn = {(edge["from"], edge["to"]): edge["latency_us"] for edge in edges}
    assert drawn == {(str(t["from"]), str(t["to"])): t["latency_us"] for t in transfers}


def test_an_older_artifact_tells_no_transfer_times(tmp_path: Path) -> None:
    from tests.service.pages.made_jobs import annotated

    path = tmp_path / "old.onnx"
    path.write_bytes(annotated(3, 30, transfers=None))
    assert {edge["latency_us"] for edge in partition_graph(path)["edges"]} == {None}

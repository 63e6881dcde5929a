"""What the form learns of a model, and what the page's graph says of operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from collage.partitioner.errors import ModelError
from collage.service.storage.model_facts import model_facts
from collage.service.storage.partition_graph import partition_graph
from tests.service.conftest import RunningServer, post_job, small_model
from tests.service.pages.made_jobs import annotated


def _save(folder: Path, dims: list[int | str | None]) -> Path:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "free", [info("x", 1, dims)], [info("y", 1, dims)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_free_dimensions_are_named_as_options_name_them(tmp_path: Path) -> None:
    facts = model_facts(_save(tmp_path, ["batch", 3, None]), tmp_path)
    assert facts["inputs"] == [{"name": "x", "dtype": "float", "dims": ["batch", "3", "?"]}]
    assert [each["name"] for each in facts["free"]] == ["batch", "x:2"]
    assert (facts["nodes"], facts["opset"], facts["operators"]) == (1, 20, {"Relu": 1})


def test_a_dimension_that_follows_from_another_is_no_field(tmp_path: Path) -> None:
    facts = model_facts(_save(tmp_path, ["past", "past + 1"]), tmp_path)
    assert [each["name"] for each in facts["free"]] == ["past"]
    assert facts["inputs"][0]["dims"] == ["past", "past + 1"]


@pytest.mark.slow
def test_sizes_that_a_model_takes_over_the_server(server: RunningServer, tmp_path: Path) -> None:
    model = _save(tmp_path, ["batch", 3, None]).read_bytes()
    free = post_job(server, model).json()["model_sha256"]
    for _ in range(2):  # the second answer is remembered
        sizes = server.http.get(f"/new/models/{free}/sizes").json()
        assert sizes == {"proposed": {"batch": "1..8", "x:2": "1..1024"}}
    bad = post_job(server, b"nonsense").json()["model_sha256"]
    assert "not an ONNX model" in server.http.get(f"/new/models/{bad}/sizes").json()["problem"]
    assert server.http.get(f"/new/models/{'0' * 64}/sizes").status_code == 404


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelError):
        model_facts(tmp_path / "model.onnx", tmp_path)


@pytest.mark.slow
def test_facts_over_the_server(server: RunningServer) -> None:
    good = post_job(server, small_model()).json()["model_sha256"]
    facts = server.http.get(f"/new/models/{good}").json()
    assert facts["inputs"][0]["dims"] == ["1", "3", "16", "16"] and not facts["free"]
    bad = post_job(server, b"nonsense").json()["model_sha256"]
    refused = server.http.get(f"/new/models/{bad}")
    assert refused.status_code == 422 and "not an ONNX model" in refused.json()["detail"]
    assert server.http.get(f"/new/models/{'0' * 64}").status_code == 404


def test_the_graph_has_times_bytes_and_shapes(tmp_path: Path) -> None:
    path = tmp_path / "artifact.onnx"
    path.write_bytes(annotated(partitions=3, nodes=30))
    graph = partition_graph(path)
    assert [part["latency_us"] for part in graph["partitions"]] == [100.0, 200.0, 300.0]
    assert graph["edges"][0]["bytes"] == 32 * len(graph["edges"][0]["tensors"])
    node = graph["partitions"][0]["nodes"][0]
    assert node["inputs"] == [["v0", "float32 1×8"]] and node["outputs"] == [["v1", "float32 1×8"]]

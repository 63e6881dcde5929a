"""The scaling benchmark runs, and prints its results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.search_scaling import scaling, synthetic


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, numbers = tmp_path / "out.svg", tmp_path / "out.json"
    arguments = ["--nodes", "48", "--family", "chain", "--family", "nasnet", "--dijkstra"]
    scaling.main([*arguments, "--plot", str(picture), "--json", str(numbers)])
    printed = capsys.readouterr().out.splitlines()
    timings = json.loads(numbers.read_text(encoding="utf-8"))
    assert len(printed) == 1 + len(timings)
    assert {timing["family"] for timing in timings} == {"chain", "nasnet"}
    assert all(timing["gap"] == 0.0 for timing in timings)
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize("kind", ["none", "domains"])
def test_borders_raise_the_cost(kind: str) -> None:
    made = synthetic.instance("resnet", 40, 400)
    free = scaling.measure("resnet", 40, "none", 1, with_dijkstra=False)
    timing = scaling.measure("resnet", 40, kind, 1, with_dijkstra=False)
    assert (timing.nodes, timing.candidates) == (len(made.index.nodes), len(made.candidates))
    assert timing.objective_us >= free.objective_us


def test_instances_are_the_same_each_time() -> None:
    one, other = (synthetic.instance("transformer", 60, 500) for _ in range(2))
    assert one.cost_us == other.cost_us
    assert [c.nodes for c in one.candidates] == [c.nodes for c in other.candidates]

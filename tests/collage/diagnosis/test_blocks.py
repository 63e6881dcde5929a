"""A model is cut into blocks that cover it, however few nodes it has."""

from __future__ import annotations

import itertools

import onnx_ir as ir
import pytest

from collage.diagnosis.speed.slow import SlowSearch
from collage.events import ignore
from collage.partitioner.graph.graph_index import GraphIndex
from tests.collage.diagnosis.conftest import long_model


@pytest.mark.parametrize("nodes", [1, 2, 5, 10, 40, 333])
def test_blocks_cover_the_model(nodes: int) -> None:
    index = GraphIndex.from_ir(ir.from_proto(long_model(nodes)))
    spans = SlowSearch(index, None, None, None, ignore)._blocks()
    assert spans[0].start == 0 and spans[-1].end == len(index.nodes)
    assert all(before.end == after.start for before, after in itertools.pairwise(spans))
    assert all(span.start < span.end for span in spans)

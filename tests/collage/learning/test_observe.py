"""What a run leaves for others to learn from."""

from __future__ import annotations

import pytest

from collage.learning.observe import Named, observations_of, promised
from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.target import Target
from tests.collage.stated_world import chain
from tests.partitioner.graphs import text_model

MODEL = chain(6)
FAST, SLOW, UNKNOWN = Target("openvino"), Target("mnn"), Target("ncnn")
TARGETS = (FAST, SLOW, UNKNOWN)
NAMED = Named(
    hardware="here",
    model="ab" * 32,
    texts={target: f"{target} -threads=2" for target in TARGETS},
    versions=dict.fromkeys(TARGETS, "1.0"),
)
HALF = 0b000111


def test_profiles_and_timed_parts_become_rows() -> None:
    profiles = {
        FAST: dict.fromkeys(range(6), 10.0),
        SLOW: {i: 10.0 * (i + 1) for i in range(6)},
    }
    everything = MODEL.index.all_nodes
    timed = {
        **{(everything, FAST): 60.0, (everything, SLOW): 200.0, (everything, UNKNOWN): 500.0},
        **{(HALF, UNKNOWN): 90.0, (HALF, FAST): 33.0, (HALF >> 1, FAST): 20.0},
    }
    rows = observations_of(MODEL.index, NAMED, profiles, timed)
    found = {(row.target.split()[0], row.sub_graph, row.is_whole): row.latency_us for row in rows}
    whole = fingerprint(MODEL.index, MODEL.index.all_nodes)
    half = fingerprint(MODEL.index, HALF)
    assert found == {
        ("openvino", whole, True): 60.0,
        ("mnn", whole, True): 200.0,
        ("ncnn", whole, True): 500.0,
        # In a plan, beside the target without a profile; not by a profile beside it.
        ("openvino", half, False): 33.0,
        ("ncnn", half, False): 90.0,
    }
    assert {(row.hardware, row.model, row.version) for row in rows} == {("here", "ab" * 32, "1.0")}
    assert len({row.features for row in rows}) == 2


def test_without_a_profile_only_what_was_timed_is_kept() -> None:
    rows = observations_of(MODEL.index, NAMED, {}, {(MODEL.index.all_nodes, FAST): 60.0})
    assert [(row.is_whole, row.latency_us) for row in rows] == [(True, 60.0)]


def test_the_best_target_for_each_part_promises_what_it_saves() -> None:
    index = text_model(
        "g (float[1,4,8,8] x, float[4,4,1,1] w) => (int64[4] z) "
        "{ a = Conv(x, w)  b = Relu(a)  c = Conv(b, w)  y = Relu(c)  z = Shape(y) }"
    ).index
    even = {0: 40.0, 1: 10.0, 2: 40.0, 3: 10.0, 4: 0.0}
    # Quicker at the first part by 20, slower at the second.
    other = {0: 25.0, 1: 5.0, 2: 90.0, 3: 5.0, 4: 0.0}
    assert promised(index, [even, other]) == pytest.approx(0.2)
    assert promised(index, [even]) == 0.0

"""Planned memory: values alive at the same time never share a byte, and others do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.tensor import TensorSpec
from collage.runtime.memory_plan import ALIGNMENT_BYTES, Block, Life, allocate, plan_memory

LIVES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(-1, 8), st.integers(0, 6)), min_size=1, max_size=20
)


def _lives(rows: list[tuple[int, int, int]]) -> list[Life]:
    return [
        Life(TensorSpec(f"v{i}", "float32", (size,)), first, first + length)
        for i, (size, first, length) in enumerate(rows)
    ]


@settings(max_examples=200, deadline=None)
@given(LIVES)
def test_values_alive_together_do_not_overlap(rows: list[tuple[int, int, int]]) -> None:
    lives = _lives(rows)
    plan = plan_memory(lives)
    for a in lives:
        for b in lives:
            if a is b or a.last < b.first or b.last < a.first:
                continue
            start_a, start_b = plan.offsets[a.spec.name], plan.offsets[b.spec.name]
            ends_before = start_a + max(a.spec.size_bytes, 1) <= start_b
            assert ends_before or start_b + max(b.spec.size_bytes, 1) <= start_a


@settings(max_examples=50, deadline=None)
@given(LIVES)
def test_arrays_are_aligned_and_of_their_spec(rows: list[tuple[int, int, int]]) -> None:
    lives = _lives(rows)
    plan, block = plan_memory(lives), Block()
    block.reserve(plan.size_bytes)
    arrays = allocate(plan, lives, block)
    for life in lives:
        array = arrays[life.spec.name]
        assert array.shape == life.spec.shape
        assert array.dtype == np.float32
        # numpy gives empty arrays any address.
        assert array.size == 0 or array.ctypes.data % ALIGNMENT_BYTES == 0


def test_a_chain_needs_two_buffers_only() -> None:
    lives = [Life(TensorSpec(f"v{i}", "float32", (256,)), i, i + 1) for i in range(10)]
    assert plan_memory(lives).size_bytes == 2 * 1024

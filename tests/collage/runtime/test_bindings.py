"""Bindings of recent shapes: right results in any order of shapes, and what is bound how often."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from tests.collage.runtime.free_shapes import Recipe, feed_of, recipes, steps_of, write

SIZES = st.lists(
    st.tuples(st.sampled_from([(1, 1), (2, 5), (5, 2), (4, 4)]), st.integers(0, 3)),
    min_size=2,
    max_size=10,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipes(), SIZES, st.booleans(), st.integers(1, 2))
def test_shapes_in_any_order_give_no_stale_results(
    recipe: Recipe, calls: list[tuple[tuple[int, int], int]], handed: bool, lanes: int
) -> None:
    import onnxruntime

    with tempfile.TemporaryDirectory() as name:
        model = write(recipe, Path(name) / "model.onnx")
        compiled = CompiledRegions(1)
        steps, inputs = steps_of(recipe, model, compiled, Path(name))
        outputs = list(model.index.outputs)
        with contextlib.closing(Executor(steps, inputs, outputs, lanes)) as executor:
            if handed:
                executor.hand_over({"y", outputs[0]})
            executor.bind()
            for sizes, seed in calls:
                feed = feed_of(sizes, seed)
                executor.feed(feed)
                executor.run()
                session = onnxruntime.InferenceSession(model.path)
                wanted = dict(zip(outputs, session.run(outputs, feed), strict=True))
                for value, made in executor.results().items():
                    assert made.dtype == wanted[value].dtype
                    np.testing.assert_array_equal(made, wanted[value], err_msg=value)
        compiled.close()

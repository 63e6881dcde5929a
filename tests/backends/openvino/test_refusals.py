"""What OpenVINO gets wrong is refused; each trap is kept, so that an upgrade that mends it fails here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.backends.contract import CompileContext
from collage.backends.openvino.backend import OpenVinoBackend
from collage.backends.sandbox.run import ChildFailed, run_in_child
from collage.backends.support.predicates import numpy_dtype
from collage.model.reference import ingest
from collage.model.sub_models import RegionFiles
from collage.partitioner.target import Target
from tests.shipped_models.test_ingest import saved

LOOP = """
    m (float[4] x) => (float[4] y, float[t, 4] z) <int64 m = {TRIPS}, bool q = {GOES}> {
        y, z = Loop(m, q, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] r, float[4] k) {
            r = Neg(s)  k = Abs(s)  d = Identity(c)
        }>
    }
"""
NO_TRIPS = LOOP.replace("{TRIPS}", "{0}").replace("{GOES}", "{1}")
TRIPS = LOOP.replace("{TRIPS}", "{2}").replace("{GOES}", "{1}")
NEVER = LOOP.replace("{TRIPS}", "{2}").replace("{GOES}", "{0}")
EMPTY_DATA = "m (float[4, 3, 0] x) => (float[4, 0] y) <int64 i = {2}> { y = Gather<axis = 1>(x, i) }"
EMPTY_ROWS = "m (float[4, 3] x, int64[0] i) => (float[0, 3] y) { y = Gather<axis = 0>(x, i) }"
EMPTY_GROWN = "m (float[4, 0] x) => (float[2, 4, 0] y) <int64[3] s = {2, 4, 0}> { y = Expand(x, s) }"
EMPTY_CONSTANT = (
    "m (float[4] x) => (int64[0] y, float[4] z) <int64[0] w = {}> { y = Identity(w)  z = Neg(x) }"
)
AXES = "m (float[2, 3, 4] x) => (float[2, 4] y) { y = OP<axes = [1], keepdims = 0>(x) }"
MISREAD = [AXES.replace("OP", op) for op in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")]


def _reasons(path: Path, folder: Path) -> list[str | None]:
    model, _ = ingest(path, folder)
    found = OpenVinoBackend()
    return [found.supports(model.index, node.index, Target("openvino")) for node in model.index.nodes]


def _shapes(path: Path, folder: Path) -> list[tuple[int, ...]]:
    """The shapes of what OpenVINO computes of a whole model from ones; it may crash."""
    model, info = ingest(path, folder)
    sub_model = RegionFiles(model, folder / "regions").get(model.index.all_nodes)
    inputs = [np.ones(spec.static_shape, numpy_dtype(spec)) for spec in info.inputs]
    return run_in_child(_run, sub_model, inputs)


def _run(sub_model, inputs):  # type: ignore[no-untyped-def]
    executable = OpenVinoBackend().compile(sub_model, Target("openvino"), CompileContext(1, Path.cwd()))
    executable.bind(inputs, [None] * len(sub_model.outputs))
    executable.run()
    return [tuple(value.shape) for value in executable.results]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [NO_TRIPS, NEVER, EMPTY_DATA, EMPTY_ROWS, EMPTY_GROWN, EMPTY_CONSTANT, *MISREAD]
)
def test_what_openvino_gets_wrong_is_refused(text: str, tmp_path: Path) -> None:
    assert any(_reasons(saved(text, tmp_path), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        TRIPS,
        EMPTY_DATA.replace("0]", "5]"),
        AXES.replace("OP", "ReduceL2"),
        AXES.replace("OP", "ReduceMax"),
    ],
)
def test_what_openvino_gets_right_is_taken(text: str, tmp_path: Path) -> None:
    assert _reasons(saved(text, tmp_path), tmp_path) == [None]


@pytest.mark.slow
@pytest.mark.parametrize("text", [NO_TRIPS, EMPTY_DATA, EMPTY_ROWS, EMPTY_GROWN])
def test_openvino_still_crashes(text: str, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="SIGFPE"):
        _shapes(saved(text, tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("text", MISREAD)
def test_openvino_still_reduces_all_axes(text: str, tmp_path: Path) -> None:
    assert _shapes(saved(text, tmp_path), tmp_path) == [()]

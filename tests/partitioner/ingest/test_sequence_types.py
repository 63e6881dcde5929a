"""Sequences and optional values keep their types through bodies, so that the normalized model loads and computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from collage.backends.numerics.reference import reference_session, run_session
from collage.partitioner.ingest.normalize import normalize

_X = np.arange(4, dtype=np.float32)
_TAKEN, _OTHER = {"x": _X, "c": np.array(True)}, {"x": _X, "c": np.array(False)}
_TWICE, _THRICE = {"x": _X, "n": np.array(2)}, {"x": _X, "n": np.array(3)}
_CASES = {
    "if": (
        """m (float[4] x, bool c) => (float[N] y) {
          s = If (c) <then_branch = t () => (seq(float[4]) o) { o = SequenceConstruct(x, x) },
            else_branch = e () => (seq(float[4]) p) { n = Neg(x)  p = SequenceConstruct(n, x) }>
          y = ConcatFromSequence<axis = 0>(s) }""",
        (_TAKEN, _OTHER),
    ),
    "if in if": (
        """m (float[4] x, bool c) => (float[N] y) {
          s = If (c) <then_branch = t () => (seq(float[4]) o) {
              o = If (c) <then_branch = u () => (seq(float[4]) q) { q = SequenceConstruct(x, x) },
                else_branch = v () => (seq(float[4]) r) { r = SequenceConstruct(x) }> },
            else_branch = e () => (seq(float[4]) p) { z = SequenceConstruct(x)  p = Identity(z) }>
          y = ConcatFromSequence<axis = 0>(s) }""",
        (_TAKEN, _OTHER),
    ),
    "loop": (
        """m (float[4] x, int64 n) => (float[N, M] y) {
          go = Constant<value = bool {1}>()  empty = SequenceEmpty<dtype = 1>()
          s = Loop(n, go, empty) <body = b (int64 i, bool k, seq(float[4]) v) => (bool q, seq(float[4]) w) {
            q = Identity(k)  w = SequenceInsert(v, x) }>
          y = ConcatFromSequence<axis = 0, new_axis = 1>(s) }""",
        (_TWICE, _THRICE),
    ),
    "map": (
        """m (float[4] x) => (float[N] y) {
          s = SequenceConstruct(x, x)
          t = SequenceMap(s) <body = b (float[4] v) => (float[4] w) { w = Neg(v) }>
          y = ConcatFromSequence<axis = 0>(t) }""",
        ({"x": _X},),
    ),
    "optional": (
        """m (float[4] x, bool c) => (float[4] y) {
          s = If (c) <then_branch = t () => (optional(float[4]) o) { o = Optional(x) },
            else_branch = e () => (optional(float[4]) p) { n = Neg(x)  p = Optional(n) }>
          y = OptionalGetElement(s) }""",
        (_TAKEN, _OTHER),
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_what_bodies_make_is_no_tensor_where_they_make_none(case: str, tmp_path: Path) -> None:
    text, samples = _CASES[case]
    source = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), source)
    made = normalize(source, tmp_path / "made", {})
    before, after = reference_session(source), reference_session(made.path)
    for sample in samples:
        wanted = run_session(before, sample, ["y"])["y"]
        assert np.array_equal(run_session(after, sample, ["y"])["y"], wanted)

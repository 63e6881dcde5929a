"""Constants of text, in any language: they are kept as they are, and nothing else of the model is left unfolded for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from collage.backends.numerics.reference import reference_session, run_session
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize

_NUMBERS = """i = Constant<value_floats = [1.0, 2.0]>()  j = Add(i, i)  z = Mul(x, j)"""
_CASES = {
    "list": ('k = Constant<value_strings = ["ü", "日本"]>()  t = StringConcat(s, k)', 2),
    "scalar": ('k = Constant<value_string = "ü">()  t = StringConcat(s, k)', 2),
    "ascii": ('k = Constant<value_strings = ["a", "bc"]>()  t = StringConcat(s, k)', 2),
    "in a branch": (
        """e = Equal(s, s)  r = Cast<to = 7>(e)  m = ReduceMax<keepdims = 0>(r)  c = Cast<to = 9>(m)
        t = If (c) <then_branch = a () => (string[2] o) {
              k = Constant<value_strings = ["ü", "é"]>()  o = StringConcat(s, k) },
            else_branch = b () => (string[2] p) { p = Identity(s) }>""",
        6,
    ),
    "output": ('t = Constant<value_strings = ["ü", "日本"]>()', 2),
    "gathered": (
        'k = Constant<value_strings = ["ü", "日本"]>()  q = Constant<value_ints = [1, 0]>()  t = Gather(k, q)',
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _CASES)
def test_constants_of_text_keep_their_words(case: str, tmp_path: Path) -> None:
    body, nodes = _CASES[case]
    source = tmp_path / "m.onnx"
    text = f"m (string[2] s, float[2] x) => (string[2] t, float[2] z) {{ {body}  {_NUMBERS} }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}'), source)
    made = normalize(source, tmp_path / "made", {})
    assert not made.warnings
    model = Model.open(made.path)
    assert len(model.index.nodes) == nodes, [node.op_type for node in model.index.nodes]
    assert all(spec.is_static for spec in model.index.values.values())
    sample = {"s": np.array(["a", "ß"], dtype=object), "x": np.ones(2, np.float32)}
    names = ["t", "z"]
    wanted = run_session(reference_session(source), sample, names)
    found = run_session(reference_session(made.path), sample, names)
    assert found["t"].tolist() == wanted["t"].tolist()
    assert found["z"].tolist() == wanted["z"].tolist() == [2.0, 4.0]

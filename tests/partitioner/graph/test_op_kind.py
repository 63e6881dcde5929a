"""Every operator has a kind."""

from __future__ import annotations

import onnx
import pytest

from collage.partitioner.graph.op_kind import OpKind, is_listed, kind_of


def test_every_operator_of_the_installed_onnx_has_a_kind() -> None:
    operators = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    missing = sorted(op for op in operators if not is_listed(*op))
    assert len(operators) > 200
    assert not missing, f"add to partitioner/graph/op_kinds.yaml: {missing}"


@pytest.mark.parametrize(
    ("domain", "op_type", "kind"),
    [
        ("", "Relu", OpKind.ELEMENTWISE),
        ("ai.onnx", "Add", OpKind.BROADCAST),
        ("", "Transpose", OpKind.INJECTIVE),
        ("", "ReduceMean", OpKind.REDUCTION),
        ("", "Conv", OpKind.OUT_FUSABLE),
        ("", "If", OpKind.OPAQUE),
        ("com.microsoft", "FusedMatMul", OpKind.OUT_FUSABLE),
        ("com.example", "Relu", OpKind.OPAQUE),
    ],
)
def test_kinds(domain: str, op_type: str, kind: OpKind) -> None:
    assert kind_of(domain, op_type) is kind


def test_operators_with_bodies_are_opaque() -> None:
    for schema in onnx.defs.get_all_schemas_with_history():
        if any(a.type == onnx.defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values()):
            assert kind_of(schema.domain, schema.name) is OpKind.OPAQUE

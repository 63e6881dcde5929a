"""The kind of an operator: how it may be fused with what stands before and after it.

Kinds are ordered: a rule that takes a kind takes the lesser ones too, and a sub-graph has the greatest
kind of its nodes. The table `op_kinds.yaml` covers every ONNX operator.

Source: TVM `include/tvm/relay/op_attr_types.h` (OpPatternKind), applied to ONNX operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from importlib import resources


class OpKind(IntEnum):
    """Kinds in fusing order; `op_kinds.yaml` says what each means."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    OUT_FUSABLE = 4
    OPAQUE = 5


def kind_of(domain: str, op_type: str) -> OpKind:
    """The kind of an operator; opaque when the table does not know it. An empty domain is `ai.onnx`."""
    return _table().get((domain or "ai.onnx", op_type), OpKind.OPAQUE)


def is_listed(domain: str, op_type: str) -> bool:
    """True when the table has the operator."""
    return (domain or "ai.onnx", op_type) in _table()


def operators(domain: str) -> tuple[str, ...]:
    """The operators of a domain that the table lists."""
    return tuple(op for listed, op in _table() if listed == (domain or "ai.onnx"))


@cache
def _table() -> Mapping[tuple[str, str], OpKind]:
    import yaml  # who loads an artifact has no need of it

    text = (
        resources.files("collage.partitioner.graph")
        .joinpath("op_kinds.yaml")
        .read_text(encoding="utf-8")
    )
    found: dict[tuple[str, str], OpKind] = {}
    for domain, kinds in yaml.safe_load(text).items():
        for kind, operators in kinds.items():
            for op_type in operators.split():
                if (domain, op_type) in found:
                    raise ValueError(f"op_kinds.yaml lists {domain}.{op_type} twice")
                found[domain, op_type] = OpKind[kind.upper()]
    return found

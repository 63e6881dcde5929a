"""Conditions on single nodes as data: attributes, types, rank, known shapes.

An attribute that a node leaves out has the default that its operator's schema gives it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx

from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

_SIDE_DTYPES = frozenset({"bool", "int32", "int64"})


@dataclass(frozen=True)
class NodeCondition:
    """Conditions on a node; a call gives the reason of a refusal, or None."""

    # (name, value as canonical text) pairs that must agree
    attributes: tuple[tuple[str, str], ...] = ()
    # numpy names of which every input and output must have one; constant inputs of integer or boolean
    # type (shapes, axes, indexes) do not count
    dtypes: tuple[str, ...] = ()
    max_rank: int | None = None  # no input or output has more dimensions
    static: bool = False  # every input and output has a known type and shape

    @classmethod
    def of(cls, data: Mapping[str, object]) -> NodeCondition:
        """From plain data, as it stands under `where` in a rule file."""
        plain = dict(data)
        plain["attributes"] = attribute_texts(plain.get("attributes", {}))
        plain["dtypes"] = tuple(plain.get("dtypes", ()))  # type: ignore[arg-type]
        return cls(**plain)  # type: ignore[arg-type]

    def __call__(self, index: GraphIndex, node: int) -> str | None:
        info = index.nodes[node]
        for name, wanted in self.attributes:
            if attribute_text(info, name) != wanted:
                return f"attribute {name} is {attribute_text(info, name)}, not {wanted}"
        for value in (*info.used, *(name for name in info.outputs if name)):
            spec = index.values[value]
            side = value in index.constants and spec.dtype in _SIDE_DTYPES
            if self.dtypes and not side and spec.dtype not in self.dtypes:
                return f"{value} is {spec.dtype}, not {' or '.join(self.dtypes)}"
            if self.max_rank is not None and spec.shape is not None and len(spec.shape) > self.max_rank:
                return f"{value} has more than {self.max_rank} dimensions"
            if self.static and not spec.is_static:
                return f"the shape of {value} is not known"
        return None


def attribute_texts(attributes: object) -> tuple[tuple[str, str], ...]:
    """A mapping of attributes as sorted pairs of name and canonical text."""
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes are a mapping, not {attributes!r}")
    return tuple(sorted((str(name), _text(value)) for name, value in attributes.items()))


def attribute_text(node: NodeInfo, name: str) -> str:
    """A node's attribute, or its default, as canonical text; `null` where it has neither."""
    if name in node.attributes:
        return _text(node.attributes[name])
    return _default(node.domain, node.op_type, node.opset, name)


@cache
def _default(domain: str, op_type: str, opset: int, name: str) -> str:
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return "null"
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return "null"
    return _text(onnx.helper.get_attribute_value(attribute.default_value))


def _text(value: object) -> str:
    """Text that is equal for equal values, whatever holds them; numbers as float32 has them."""
    if isinstance(value, np.ndarray):
        return _text(value.tolist())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, bytes):
        return _text(value.decode(errors="replace"))
    if isinstance(value, (int, float)):
        return f"{np.float32(value):g}" if isinstance(value, float) else str(int(value))
    return json.dumps(value, default=str)

"""Names and metadata that are not UTF-8: protobuf hands these over as bytes, which ONNX's tools cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx


def repair_names(proto: onnx.ModelProto) -> bool:
    """Write the bytes of texts that are not UTF-8 as `\\xff`, in place; whether there were any."""
    changed = False
    for message, field in _names(proto):
        name = getattr(message, field)
        if isinstance(name, bytes):
            setattr(message, field, _readable(name))
            changed = True
    for names in _lists(proto):
        for position, name in enumerate(names):
            if isinstance(name, bytes):
                names[position] = _readable(name)
                changed = True
    return changed


def _readable(name: bytes) -> str:
    return name.decode("utf-8", errors="backslashreplace")


def _graphs(proto: onnx.ModelProto) -> Iterator[Any]:
    """The graph, functions, and all bodies in them: all have nodes."""
    waiting: list[Any] = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += (attribute.g, *attribute.graphs)


def _names(proto: onnx.ModelProto) -> Iterator[tuple[Any, str]]:
    """What has a name, or another text, and the field."""
    for entry in proto.metadata_props:
        yield from ((entry, "key"), (entry, "value"))
    for message in (proto, proto.graph):
        yield message, "doc_string"
    yield from ((proto, field) for field in ("producer_name", "producer_version", "domain"))
    for graph in _graphs(proto):
        yield graph, "name"
        for node in graph.node:
            yield from ((node, field) for field in ("name", "doc_string"))
        if isinstance(graph, onnx.GraphProto):
            yield from ((tensor, "name") for tensor in graph.initializer)
            yield from ((sparse.values, "name") for sparse in graph.sparse_initializer)
            for value in (*graph.input, *graph.output, *graph.value_info):
                yield value, "name"
                yield from ((dim, "dim_param") for dim in value.type.tensor_type.shape.dim)


def _lists(proto: onnx.ModelProto) -> Iterator[Any]:
    """Lists of names."""
    for graph in _graphs(proto):
        if isinstance(graph, onnx.FunctionProto):
            yield from (graph.input, graph.output)
        for node in graph.node:
            yield from (node.input, node.output)

"""The graphs and nodes of a model on the protobuf, those of bodies too."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies that a node has itself."""
    for attribute in node.attribute:
        # A field that is not set must not be touched: protobuf would then write it.
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or function, and of all bodies in it."""
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from nodes_of(body)


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph, and all bodies in it and in functions."""
    yield proto.graph
    for graph in (proto.graph, *proto.functions):
        for node in nodes_of(graph):
            yield from bodies_of(node)

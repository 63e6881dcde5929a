"""A bias that several convolutions share is copied for each.

OpenVINO fuses no shared bias, and then no activation either. TensorFlow's exporters share biases of
zeros.
"""

from __future__ import annotations

from collections import Counter

from collage.backends.rewriting.graph import RewriteGraph

_BIASED, _BIAS = ("Conv", "ConvTranspose"), 2


def copy_shared_biases(graph: RewriteGraph) -> int:
    """Apply the pass; returns how many biases were copied."""
    seen: Counter[str] = Counter()
    copied = 0
    for node in graph.nodes:
        if (
            not graph.is_ours(node, *_BIASED)
            or len(node.input) <= _BIAS
            or node.input[_BIAS] not in graph.constants
        ):
            continue
        name = node.input[_BIAS]
        seen[name] += 1
        if seen[name] > 1:
            node.input[_BIAS] = graph.copied(name, f"{name}/{seen[name]}")
            copied += 1
    if copied:
        graph.replace(graph.nodes)
    return copied

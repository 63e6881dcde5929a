"""Every convolution with a bias of its own.

OpenVINO fuses no bias that several convolutions share, and then no activation either. Exporters that keep equal constants once
(TensorFlow's) share those that are all zeros.
"""

from __future__ import annotations

from collections import Counter

from collage.backends.rewriting.graph import RewriteGraph

_BIASED, _BIAS = ("Conv", "ConvTranspose"), 2


def part_biases(graph: RewriteGraph) -> int:
    """Copy biases that several convolutions share; returns how many were copied."""
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

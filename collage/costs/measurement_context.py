"""What costs assume about the plan around a region, chosen by evidence.

`python -m benchmarks.prediction` runs random coarse plans end to end and asks which way of measuring
their parts alone predicts them best; docs/measurement.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage.backends.machine.hardware import Hardware
from collage.backends.measurement.protocol import Protocol, eviction_for
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.op_kind import OpKind, kind_of
from collage.partitioner.graph.weights import total_bytes
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.transition import CopyCost, Transitions

# What a call of a partition, and a value that crosses a border, cost before a run has learned better.
CALL_US = 5.0
BORDER_US = 20.0
# Walking through memory takes its time too, so fewer calls must do.
_MIN_S, _MAX_S = 0.1, 0.8
# How many of the largest values a plan's partitions hold, at the most.
_MOST_LARGEST = 12
# What they make is their input under another shape, which no runtime writes.
_VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def transitions_between(
    specs: Sequence[TargetSpec], copies: Mapping[tuple[str, str], CopyCost]
) -> Transitions:
    """What borders between targets cost before a run has learned better; copies are measured."""
    borders = dict.fromkeys([spec.target for spec in specs], BORDER_US)
    known = Transitions.for_specs(specs, copies=copies)
    return replace(known, default_call_us=CALL_US, border_us=borders)


def protocol_for(model: Model, machine: Hardware) -> Protocol:
    """How to measure parts of this model there: with the caches as the rest of it leaves them."""
    evict = eviction_for(touched_bytes(model), machine.last_level_cache_bytes)
    return Protocol(evict_bytes=evict, min_s=_MIN_S, max_s=_MAX_S) if evict else Protocol()


def touched_bytes(model: Model) -> int:
    """How much memory a run of the model touches: its weights and what it writes, in bytes.

    Runtimes use the memory of intermediate values again, each partition its own: so no more than twelve
    times the largest value counts as written, one for each partition of a plan with many.
    """
    written = written_sizes(model)
    return weight_bytes(model) + min(sum(written), _MOST_LARGEST * max(written, default=0))


def weight_bytes(model: Model) -> int:
    """The size of all initializers."""
    return total_bytes(model.ir.graph.initializers.values())


def written_sizes(model: Model) -> list[int]:
    """The sizes of inputs and intermediate values in bytes.

    Views are not written, nor is a value that one elementwise node alone reads: it is computed in place or
    fused into its maker.
    """
    index = model.index
    made = (
        name
        for node in index.nodes
        if node.op_type not in _VIEWS and not _is_fused(index, node)
        for name in node.outputs
        if name and name not in index.constants
    )
    return [index.values[name].size_bytes for name in (*index.inputs, *made)]


def _is_fused(index: GraphIndex, node: NodeInfo) -> bool:
    readers = [index.nodes[i] for i in bits(index.successors[node.index])]
    return len(readers) == 1 and kind_of(readers[0].domain, readers[0].op_type) <= OpKind.BROADCAST

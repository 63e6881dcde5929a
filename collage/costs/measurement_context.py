"""What costs assume about the plan around a region; docs/measurement.md says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage.backends.machine.hardware import Hardware
from collage.backends.measurement.protocol import Protocol, eviction_for
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.op_kind import OpKind, kind_of
from collage.partitioner.graph.weights import total_bytes
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.transition import CopyCost, Transitions

# First guesses at a partition's call and at a value that crosses a border.
CALL_US = 5.0
BORDER_US = 20.0
# Evicting caches takes time, so fewer calls must do.
_MIN_S, _MAX_S = 0.1, 0.8
# How many of the largest values a plan's partitions hold, at the most.
_MOST_LARGEST = 12
# Operators whose output is their input under another shape.
_VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def transitions_between(
    specs: Sequence[TargetSpec], copies: Mapping[tuple[str, str], CopyCost]
) -> Transitions:
    """What borders between targets cost before a run has learned better; copies are measured."""
    return Transitions(
        default_call_us=CALL_US,
        border_us={spec.target: BORDER_US for spec in specs},
        domains={spec.target: spec.memory_domain for spec in specs},
        copies=copies,
    )


def protocol_for(model: Model, machine: Hardware) -> Protocol:
    """How to measure parts of this model: with the caches as the rest of it leaves them."""
    evict = eviction_for(touched_bytes(model), machine.last_level_cache_bytes)
    return Protocol(evict_bytes=evict, min_s=_MIN_S, max_s=_MAX_S) if evict else Protocol()


def touched_bytes(model: Model) -> int:
    """How much memory a run of the model touches: its weights and what it writes.

    Runtimes reuse the memory of intermediate values. So at most twelve times the largest value counts
    as written, one for each partition of a plan with many.
    """
    written = written_sizes(model)
    return weight_bytes(model) + min(sum(written), _MOST_LARGEST * max(written, default=0))


def weight_bytes(model: Model) -> int:
    return total_bytes(model.ir.graph.initializers.values())


def written_sizes(model: Model) -> list[int]:
    """The sizes of inputs and intermediate values in bytes.

    Views are not written. A value that one elementwise node alone reads is computed in place or fused.
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

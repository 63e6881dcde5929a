"""What costs assume about the plan around a region, chosen by evidence.

`python -m benchmarks.prediction` runs random coarse plans end to end and asks which way of measuring
their parts alone predicts them best; docs/measurement.md has the table.
"""

from __future__ import annotations

from backends.hardware import Hardware
from backends.protocol import Protocol, eviction_for
from partitioner.model import Model
from partitioner.weights import total_bytes

# What a call of a partition, and a value that crosses a border, cost before a run has learnt better.
CALL_US = 5.0
BORDER_US = 20.0
# Walking through memory takes its time too, so fewer calls must do.
_MIN_S, _MAX_S = 0.1, 0.8


def protocol_for(model: Model, machine: Hardware) -> Protocol:
    """How to measure parts of this model there: with the caches as the rest of it leaves them."""
    evict = eviction_for(model_bytes(model), machine.last_level_cache_bytes)
    return Protocol(evict_bytes=evict, min_s=_MIN_S, max_s=_MAX_S) if evict else Protocol()


def model_bytes(model: Model) -> int:
    """Weights and intermediate values of a model together, in bytes."""
    index = model.index
    values = (spec for name, spec in index.values.items() if name not in index.constants)
    weights = total_bytes(model.ir.graph.initializers.values())
    return weights + sum(spec.size_bytes for spec in values)

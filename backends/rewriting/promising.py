"""Which rewritings of a whole model are worth timing, by how much they change."""

from __future__ import annotations

from collections import Counter

from collage.backends.rewriting.rewrite import changes
from collage.backends.rewriting.table import (
    PASSES,
    REWRITE,
    TRANSPOSES,
    WINOGRAD,
    passes_of,
    rewriting,
)
from collage.backends.whole_model import WholeModel
from collage.partitioner.target import Target

# Fewer places gain little, and so do Transposes where less than this share goes
# (docs/results/rewriting.md).
_FEWEST_PLACES, _LEAST_SHARE = 2, 0.25
_AT_ONE_PLACE = {found.name for found in PASSES if found.at_one_place}
# Without any of these no pass changes a model.
_OPERATORS = (
    *("Transpose", "HardSigmoid", "InstanceNormalization", "Conv", "ConvTranspose", "Split", "Slice"),
    *("Expand", "Tile", "Resize", "Upsample"),
)


def promising(target: Target, model: WholeModel) -> list[Target]:
    """The target with each way of rewriting that changes enough of the model."""
    values = model.tunable.get(REWRITE.name, ())
    counts = Counter(node.op_type for node in model.index.nodes)
    if not values or not any(counts[kind] for kind in _OPERATORS):
        return []
    made = model.inspect(changes)
    if made is None:
        return []
    found = {n for n, count in made.found.items() if count >= _FEWEST_PLACES or n in _AT_ONE_PLACE}
    transposes = counts["Transpose"]
    if transposes - made.transposes_left >= max(_FEWEST_PLACES, _LEAST_SHARE * transposes):
        found.add(TRANSPOSES)
    variants = [target.with_options(**{REWRITE.name: value}) for value in values]
    return [variant for variant in variants if found & _reasons(variant)]


def _reasons(target: Target) -> set[str]:
    """The passes that are a reason to time a target; Winograd's alone where it is asked for."""
    return {WINOGRAD} if rewriting(target) == WINOGRAD else {p.name for p in passes_of(target)}

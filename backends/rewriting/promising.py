"""Which rewritings of a whole model may pay, by how much they change."""

from __future__ import annotations

from collections import Counter

from collage.backends.contract import WholeModel
from collage.backends.rewriting.rewrite import (
    REWRITE,
    SPREADS,
    TRANSPOSES,
    WINOGRAD,
    changes,
    forms_of,
    rewriting,
)
from collage.partitioner.target import Target

# Fewer places gain little, but for one product; so do Transposes where less than this share goes.
_FEWEST, _LEAST_SHARE = 2, 0.25
_OF_PRODUCTS = (WINOGRAD, SPREADS)
# Without any of these no pass changes a model.
_TELLING = (
    *("Transpose", "HardSigmoid", "InstanceNormalization", "Conv", "ConvTranspose", "Split", "Slice"),
    *("Expand", "Tile", "Resize", "Upsample"),
)


def promising(target: Target, model: WholeModel) -> list[Target]:
    """The target with each way of rewriting that changes enough of the model to be worth timing."""
    ways = model.tunable.get(REWRITE.name, ())
    counts = Counter(node.op_type for node in model.index.nodes)
    if not ways or not any(counts[kind] for kind in _TELLING):
        return []
    made = model.inspect(changes)
    if made is None:
        return []
    found = {form for form, count in made.found.items() if count >= _FEWEST or form in _OF_PRODUCTS}
    transposes = counts["Transpose"]
    if transposes - made.transposes_left >= max(_FEWEST, _LEAST_SHARE * transposes):
        found.add(TRANSPOSES)
    told = [target.with_options(**{REWRITE.name: how}) for how in ways]
    return [variant for variant in told if found & _decisive(variant)]


def _decisive(target: Target) -> set[str]:
    """The forms that are a reason to time a target: of Winograd's that one alone."""
    return {WINOGRAD} if rewriting(target) == WINOGRAD else set(forms_of(target))

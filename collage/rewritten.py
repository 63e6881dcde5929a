"""Whole models in an equal form (`backends.rewriting`), where rewriting changes what runtimes are slow at.

A target with this option may be the fastest where the same without it is far behind, so it is timed beside the single
targets before the search, and not only as a change of the best plan.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from backends.registry import tunable_options
from backends.rewriting import ON, REWRITE, changes, rewrites
from backends.sandbox import ChildFailed, ChildLimits, run_in_child
from collage.entry import Entry
from collage.events import Event, Listener, ignore
from collage.strategies import single_plan
from partitioner.errors import CancelledError
from partitioner.model import Model
from partitioner.target import Target

# Fewer of them cost little, and so do Transposes where less than this share goes.
_FEWEST, _LEAST_SHARE = 4, 0.25
_TIMEOUT_S = 120.0


def single_rewritten(
    model: Model,
    targets: Sequence[Target],
    threads: int,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> list[Entry]:
    """Single targets that have the model rewritten; none where that would change little.

    Args:
        model: the normalised model.
        targets: the caller's; one whose option is stated stays as it is.
        threads: of one call.
        listener: is told where the model cannot be rewritten.
        cancel: stops the child that counts.

    Raises:
        CancelledError: `cancel` was set.
    """
    able = [target for target in targets if REWRITE.name in tunable_options(target, threads)]
    counts = Counter(node.op_type for node in model.index.nodes)
    transposes = counts["Transpose"]
    if not able or max(transposes, counts["HardSigmoid"]) < _FEWEST:
        return []
    limits = ChildLimits(timeout_s=_TIMEOUT_S)
    try:
        made = run_in_child(changes, model.path.resolve(), limits=limits, cancel=cancel)
    except ChildFailed as failure:
        if failure.kind == "cancelled":
            raise CancelledError("cancelled while rewriting the model") from None
        listener(Event("measure", f"the model is run as it is, not rewritten: {failure.reason}"))
        return []
    cancelled = transposes - made.transposes_left
    if made.hard_swishes < _FEWEST and cancelled < max(_FEWEST // 2, _LEAST_SHARE * transposes):
        return []
    told = [target.with_options(**{REWRITE.name: ON}) for target in able]
    return [Entry(single_plan(model, target), f"single {target}") for target in told]


def offered(
    targets: Sequence[Target], threads: int, entries: Sequence[Entry]
) -> dict[Target, dict[str, tuple[str, ...]]]:
    """What local moves may try of each target's options: rewriting only where whole models were timed so."""
    tried = any(rewrites(target) for entry in entries for target in entry.plan.targets)
    found = {target: tunable_options(target, threads) for target in targets}
    if not tried:
        for options in found.values():
            options.pop(REWRITE.name, None)
    return found

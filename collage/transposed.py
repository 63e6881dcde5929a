"""Whole models with their Transposes moved and cancelled, where that leaves many fewer of them.

A target with this option (`backends.moved_transposes`) may be the fastest where the same without it is far behind, so it
is timed beside the single targets before the search, and not only as a change of the best plan.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from backends.moved_transposes import MOVED, TRANSPOSES, moves_transposes, transposes_left
from backends.registry import tunable_options
from backends.sandbox import ChildFailed, ChildLimits, run_in_child
from collage.entry import Entry
from collage.strategies import single_plan
from partitioner.errors import CancelledError
from partitioner.model import Model
from partitioner.target import Target

# Fewer in a model cost little, and so do those that are left where less than this share goes.
_FEWEST, _LEAST_SHARE = 4, 0.25
_TIMEOUT_S = 120.0


def transposed(
    model: Model, targets: Sequence[Target], threads: int, cancel: threading.Event | None = None
) -> list[Entry]:
    """Single targets that have the model's Transposes moved; none where that would change little.

    Args:
        model: the normalised model.
        targets: the caller's; one whose option is stated stays as it is.
        threads: of one call.
        cancel: stops the child that counts.

    Raises:
        CancelledError: `cancel` was set.
    """
    able = [target for target in targets if TRANSPOSES.name in tunable_options(target, threads)]
    count = sum(node.op == "Transpose" for node in model.index.nodes)
    if not able or count < _FEWEST:
        return []
    limits = ChildLimits(timeout_s=_TIMEOUT_S)
    try:
        left = run_in_child(transposes_left, model.path.resolve(), limits=limits, cancel=cancel)
    except ChildFailed as failure:
        if failure.kind == "cancelled":
            raise CancelledError("cancelled while moving Transposes") from None
        return []  # it may be too large to be written, and is run as it is
    if count - left < _LEAST_SHARE * count:
        return []
    moved = [target.with_options(**{TRANSPOSES.name: MOVED}) for target in able]
    return [Entry(single_plan(model, target), f"single {target}") for target in moved]


def offered(
    targets: Sequence[Target], threads: int, entries: Sequence[Entry]
) -> dict[Target, dict[str, tuple[str, ...]]]:
    """What local moves may try of each target's options: moving Transposes only where whole models were timed so."""
    tried = any(moves_transposes(target) for entry in entries for target in entry.plan.targets)
    found = {target: tunable_options(target, threads) for target in targets}
    if not tried:
        for options in found.values():
            options.pop(TRANSPOSES.name, None)
    return found

"""Whole models in an equal form (`collage.backends.rewriting.rewrite`), where rewriting changes what runtimes are slow at.

A target with this option may be the fastest where the same without it is far behind, so it is timed beside the single
targets before the search, and not only as a change of the best plan.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from collage.backends.registry import check_options, tunable_options
from collage.backends.rewriting.rewrite import (
    ON,
    REWRITE,
    SPREADS,
    TRANSPOSES,
    WINOGRAD,
    changes,
    forms_of,
    rewriting,
)
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.events import Event, Listener, ignore
from collage.partitioner.errors import CancelledError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.search.fixed_plans import single_plan
from collage.timing.timed_plan import TimedPlan

# Fewer places for a form cost little, but for one product; and so do Transposes where less than this share goes.
_FEWEST, _LEAST_SHARE = 2, 0.25
_OF_PRODUCTS = (WINOGRAD, SPREADS)
_TIMEOUT_S = 120.0
# A rewritten target is mixed, too, where it is so much faster than as it is, and so near the fastest whole model.
_AHEAD, _NEAR = 1.02, 1.5
_TELLING = (
    "Transpose",
    "HardSigmoid",
    "InstanceNormalization",
    "Conv",
    "ConvTranspose",
    "Split",
    "Slice",
    "Expand",
    "Tile",
    "Resize",
    "Upsample",
)


def single_rewritten(
    model: Model,
    targets: Sequence[Target],
    threads: int,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> list[TimedPlan]:
    """Single targets that have the model rewritten; none where that would change little.

    Args:
        model: the normalized model.
        targets: the caller's; one whose option is stated stays as it is.
        threads: of one call.
        listener: is told where the model cannot be rewritten.
        cancel: stops the child that counts.

    Raises:
        CancelledError: `cancel` was set.
    """
    able = {target: tunable_options(target, threads).get(REWRITE.name, ()) for target in targets}
    counts = Counter(node.op_type for node in model.index.nodes)
    if not any(able.values()) or not any(counts[kind] for kind in _TELLING):
        return []
    limits = ChildLimits(timeout_s=_TIMEOUT_S)
    try:
        made = run_in_child(changes, model.path.resolve(), limits=limits, cancel=cancel)
    except ChildFailed as failure:
        if failure.kind == "cancelled":
            raise CancelledError("cancelled while rewriting the model") from None
        listener(Event("measure", f"the model is run as it is, not rewritten: {failure.reason}"))
        return []
    found = {form for form, count in made.found.items() if count >= _FEWEST or form in _OF_PRODUCTS}
    transposes = counts["Transpose"]
    least = max(_FEWEST, _LEAST_SHARE * transposes)
    if transposes - made.transposes_left >= least:
        found.add(TRANSPOSES)
    told = [t.with_options(**{REWRITE.name: how}) for t, ways in able.items() for how in ways]
    hopeful = [target for target in told if _may_pay(target, found)]
    return [TimedPlan(single_plan(model, target), f"single {target}") for target in hopeful]


def _may_pay(target: Target, found: set[str]) -> bool:
    of_it = {WINOGRAD} if rewriting(target) == WINOGRAD else set(forms_of(target))
    return bool(found & of_it) and check_options(target).check_target(target) is None


def worth_mixing(entries: Sequence[TimedPlan], targets: Sequence[Target]) -> list[Target]:
    """Of each of the caller's targets the way of rewriting with which its whole model was clearly faster, if any."""
    singles = {
        next(iter(e.plan.targets)): e for e in entries if e.timed and len(e.plan.partitions) == 1
    }
    least = min((entry.ratio for entry in singles.values()), default=0.0)
    found = []
    for target in targets:
        ways = [target.with_options(**{REWRITE.name: how}) for how in (ON, WINOGRAD)]
        timed = [way for way in ways if way in singles and way not in targets]
        if target not in singles or not timed:
            continue
        best = min(timed, key=lambda way: singles[way].ratio)
        limit = min(singles[target].ratio / _AHEAD, least * _NEAR)
        if singles[best].ratio <= limit:
            found.append(best)
    return found


def offered(
    targets: Sequence[Target], threads: int, entries: Sequence[TimedPlan]
) -> dict[Target, dict[str, tuple[str, ...]]]:
    """What local moves may try of each target's options: of rewriting only what whole models were timed with."""
    tried = {target for entry in entries for target in entry.plan.targets}
    found = {target: tunable_options(target, threads) for target in targets}
    for target, options in found.items():
        ways = options.pop(REWRITE.name, ())
        if seen := tuple(how for how in ways if target.with_options(**{REWRITE.name: how}) in tried):
            options[REWRITE.name] = seen
    return found

"""What a run learns from other models, and what it leaves for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from collage.backends.registry import canonical
from collage.cost_db.costs.observations import Gain, ObservationStore
from collage.cost_db.errors import DatabaseError
from collage.events import Event
from collage.learning.advice import NO_ADVICE, Advice, advice_for, of_targets
from collage.learning.observe import Named, observations_of
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.target import Target
from collage.tuning.stages import Allowed, Prepared, Refined, Timed


def advise(allowed: Allowed) -> Advice:
    """Advice for a run; none where something else than latency alone decides what wins."""
    if not _learns(allowed) or allowed.constraints != Constraints():
        return NO_ADVICE
    named = _named(allowed, allowed.request.targets)
    try:
        return advice_for(
            allowed.run.database, allowed.model.index, named, lambda target: _text(allowed, target)
        )
    except DatabaseError as error:
        allowed.run.listener(Event("measure", f"nothing is predicted: {error}"))
        return NO_ADVICE


def without(index: GraphIndex, candidates: CandidateSet, left_out: Collection[Target]) -> CandidateSet:
    """Candidates of the other targets."""
    if not left_out:
        return candidates
    kept = [c for c in candidates.candidates if c.target not in left_out]
    refusals = {key: why for key, why in candidates.refusals.items() if key[1] not in left_out}
    return CandidateSet.build(index, kept, refusals, candidates.notes)


def observe(timed: Timed) -> None:
    """Keep what the run has seen of its model before the search."""
    if not _learns(timed):
        return
    everything = timed.model.index.all_nodes
    alone_us = {(everything, t): us for t, us in timed.corrections.single_target_us.items()}
    timed_us = {**alone_us, **timed.corrections.partition_us}
    targets = {target for _, target in timed_us} | {spec.target for spec in timed.specs}
    seen = observations_of(
        timed.model.index, _named(timed, targets), timed.estimates.profiles_us(), timed_us
    )
    store = ObservationStore(timed.run.database.connections)
    try:
        store.keep(seen)
    except DatabaseError as error:
        timed.run.listener(Event("measure", f"what was seen could not be kept: {error}"))


def keep_gain(refined: Refined) -> None:
    """Keep what the plan gained beyond the whole models that were timed before, and which runtimes it uses."""
    was_searched = refined.lazy is not None and refined.promised is not None
    if not _learns(refined) or not (was_searched or refined.ended_early):
        return
    standings = refined.comparisons.standings
    before = [standings.ratio(entry) for entry in refined.wholes if standings.may_win(entry)]
    if not before:
        return
    named = _named(refined, refined.request.targets)
    gain = Gain(
        hardware=named.hardware,
        model=named.model,
        targets=of_targets(named),
        promised=refined.promised if was_searched else None,
        gained=max(0.0, 1.0 - standings.ratio(refined.winner) / min(before)),
        used=tuple(sorted({target.backend for target in refined.winner.plan.targets})),
    )
    try:
        ObservationStore(refined.run.database.connections).keep_gain(gain)
    except DatabaseError as error:
        refined.run.listener(Event("emit", f"what the search gained could not be kept: {error}"))


def _learns(known: Allowed) -> bool:
    """Whether a run is a search for the least latency of a model as exact as it is."""
    options = known.request.options
    is_exact = not known.error_limits.has_budget
    return known.request.searches and is_exact and options.objective == "latency"


def _named(known: Prepared, targets: Iterable[Target]) -> Named:
    # Variants run on the runtimes of the targets that were given.
    given = zip(known.request.targets, known.facts, strict=True)
    version_of = {target.backend: facts.version for target, facts in given}
    return Named(
        hardware=known.run.runner.hardware.digest,
        model=known.model.sha256,
        texts={target: _text(known, target) for target in targets},
        versions={target: version_of[target.backend] for target in targets},
    )


def _text(known: Prepared, target: Target) -> str:
    return str(canonical(target, known.sampling.threads))

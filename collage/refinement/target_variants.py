"""Variants of the user's targets: the same runtime with options that the user left open.

A variant may be the fastest where the target itself is far behind. So each is timed on the whole model
before the search, and not only as a change of the best plan. Which variants may pay, `Backend.variants`
says.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from collage.backends.options import THREADS
from collage.backends.registry import backend_of, options_of, tunable_options
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.backends.whole_model import Found, WholeModel
from collage.events import Event, Listener, ignore
from collage.learning.advice import NO_ADVICE, Advice
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.search.fixed_plans import single_plan
from collage.timing.timed_plan import TimedPlan

_TIMEOUT_S = 120.0
# A variant joins the search where it is so much faster than its target, and so near the fastest whole
# model.
_AHEAD, _NEAR = 1.02, 1.5
# So many settings on trial are tried in one run.
MOST_TRIALS = 2


def single_variants(
    inspection: Inspection,
    targets: Sequence[Target],
    threads: int,
    latencies_us: Mapping[Target, float],
    advice: Advice = NO_ADVICE,
    trials: int = 0,
) -> list[TimedPlan]:
    """Plans of the whole model on variants of targets; first those that differ in threads, settings on trial last.

    Args:
        inspection: of the model.
        targets: the user's, the fastest first; options that one states stay as they are.
        latencies_us: of the whole model on each target that can run it.
        advice: which variants never won on other models, and which did best.
        trials: so many settings of the fastest target are tried at the most.
    """
    found = _variants(inspection, targets, threads, latencies_us)
    found.sort(key=lambda pair: _threads(pair[0]) == _threads(pair[1]))
    found = [pair for pair in found if pair[1] not in targets and advice.may_win(*pair)]
    on_trial = [(t, v) for t in targets[:1] if t in latencies_us for v in _on_trial(t, threads)]
    found += advice.most_promising(on_trial)[:trials]
    return [
        TimedPlan(single_plan(inspection.model, variant), f"single {variant}") for _, variant in found
    ]


def common_forms(
    inspection: Inspection,
    targets: Sequence[Target],
    threads: int,
    latencies_us: Mapping[Target, float],
) -> list[Target]:
    """The targets in another form of the model, where all targets of a runtime may have it: these still share partitions.

    Arguments are those of `single_variants`.
    """
    forms: dict[tuple[str, frozenset[tuple[str, str]]], list[Target]] = {}
    for target, variant in _variants(inspection, targets, threads, latencies_us):
        changed = frozenset(variant.options) - frozenset(target.options)
        if {name for name, _ in changed} <= _whole_first(target):
            forms.setdefault((target.backend, changed), []).append(variant)
    own = Counter(target.backend for target in targets)
    return [v for (name, _), found in forms.items() if len(found) == own[name] for v in found]


def beside_faster_forms(targets: Sequence[Target], latencies_us: Mapping[Target, float]) -> set[Target]:
    """Those of some targets and their `common_forms` of which the runtime is faster in another form.

    Args:
        targets: the user's.
        latencies_us: of the whole model, forms included.
    """
    forms: dict[tuple[str, frozenset[tuple[str, str]]], dict[Target, Target]] = {}
    for form in latencies_us:
        if form not in targets:
            plain = Target(
                form.backend, tuple(o for o in form.options if o[0] not in _whole_first(form))
            )
            own = frozenset(form.options) - frozenset(plain.options)
            if plain in latencies_us:
                forms.setdefault((form.backend, own), {})[plain] = form
    left_out: set[Target] = set()
    for backend in {backend for backend, _ in forms}:
        rivals = [pairs for (name, _), pairs in forms.items() if name == backend]
        gains = [
            geometric_mean(latencies_us[p] / latencies_us[f] for p, f in r.items()) for r in rivals
        ]
        best = rivals[gains.index(max(gains))] if max(gains) > 1 else {}
        left_out |= {form for pairs in rivals if pairs is not best for form in pairs.values()}
        left_out |= set(best)
    return left_out


def _whole_first(target: Target) -> set[str]:
    """Options that change the form in which a whole model is read; a setting on trial is none."""
    return {o.name for o in options_of(backend_of(target)) if o.whole_first and not o.on_trial}


def _variants(
    inspection: Inspection,
    targets: Sequence[Target],
    threads: int,
    latencies_us: Mapping[Target, float],
) -> list[tuple[Target, Target]]:
    """What runtimes offer for a model: pairs of a target and its variant."""
    found: list[tuple[Target, Target]] = []
    for target in targets:
        whole = WholeModel(
            index=inspection.model.index,
            latency_us=latencies_us.get(target, inf),
            tunable=tunable_options(target, threads),
            inspect=inspection.result,
        )
        found += [(target, variant) for variant in backend_of(target).variants(target, whole)]
    return found


def _on_trial(target: Target, threads: int) -> list[Target]:
    """A target on about half of the threads, and with each setting on trial that the user left open."""
    tunable = tunable_options(target, threads)
    options = [o for o in options_of(backend_of(target)) if o.on_trial and o.name in tunable]
    fewer = tunable.get(THREADS.name, ())[-1:]
    # One thread is a variant of its own, where calls are short.
    found = [target.with_options(**{THREADS.name: count}) for count in fewer if count != "1"]
    found += [target.with_options(**{o.name: value}) for o in options for value in tunable[o.name]]
    return [variant for variant in found if backend_of(target).check_target(variant) is None]


def worth_mixing(entries: Sequence[TimedPlan], targets: Sequence[Target]) -> list[Target]:
    """Of each target the variant with which its whole model was clearly faster, if any.

    Args:
        entries: timed plans, the variants' among them.
    """
    singles = {
        next(iter(e.plan.targets)): e for e in entries if e.timed and len(e.plan.partitions) == 1
    }
    least = min((entry.ratio for entry in singles.values()), default=0.0)
    found = []
    for target in targets:
        # A setting on trial is no target of its own: local moves set it where the whole model was timed with it.
        options = [o for o in options_of(backend_of(target)) if o.whole_first and not o.on_trial]
        ways = [target.with_options(**{o.name: value}) for o in options for value in o.tunable]
        timed = [way for way in ways if way in singles and way not in targets]
        if target not in singles or not timed:
            continue
        best = min(timed, key=lambda way: singles[way].ratio)
        limit = min(singles[target].ratio / _AHEAD, least * _NEAR)
        if singles[best].ratio <= limit:
            found.append(best)
    return found


def offered_options(
    targets: Sequence[Target], threads: int, entries: Sequence[TimedPlan]
) -> dict[Target, dict[str, tuple[str, ...]]]:
    """What local moves may set of each target's options; `whole_first` ones only to values that were timed.

    Args:
        entries: plans that were timed.
    """
    timed = {target for entry in entries for target in entry.plan.targets}
    found = {target: tunable_options(target, threads) for target in targets}
    for target, options in found.items():
        for option in options_of(backend_of(target)):
            if option.whole_first and option.name in options:
                values = options.pop(option.name)
                if seen := tuple(v for v in values if target.with_options(**{option.name: v}) in timed):
                    options[option.name] = seen
    return found


class Inspection:
    """Calls functions of the model's file in a child, each once.

    Args:
        model: as it was taken.
        listener: is told where the model cannot be inspected.
        cancel: stops a call when set.
    """

    def __init__(
        self, model: Model, listener: Listener = ignore, cancel: threading.Event | None = None
    ) -> None:
        self.model = model
        self._path, self._listener, self._cancel = model.path.resolve(), listener, cancel
        self._results: dict[Callable[[Path], Any], Any] = {}

    def result(self, function: Callable[[Path], Found], /) -> Found | None:
        if function not in self._results:
            self._results[function] = self._call(function)
        known: Found | None = self._results[function]
        return known

    def _call(self, function: Callable[[Path], Found]) -> Found | None:
        limits = ChildLimits(timeout_s=_TIMEOUT_S)
        try:
            made: Found = run_in_child(function, self._path, limits=limits, cancel=self._cancel)
        except ChildFailed as failure:
            told = f"the model is run as it is, not rewritten: {failure.reason}"
            self._listener(Event("measure", told))
            return None
        return made


def _threads(target: Target) -> str:
    return target.option(THREADS.name, THREADS.default)

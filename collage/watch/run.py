"""`collage watch run`: every watched artifact in each environment."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage.artifact.verification import VerificationError
from collage.backends.measurement.ratio import Ratio
from collage.environments.environment import environment_of, this_environment
from collage.environments.interleaved import TimingError
from collage.environments.work import Environment
from collage.events import Event, Listener, ignore
from collage.partitioner.errors import BadInputError
from collage.runner import Runner
from collage.watch.comparison import Compared, compare
from collage.watch.plans import targets_of
from collage.watch.stored import LEAST_CHANGE, by_yardstick
from collage.watch.verdicts import REGRESSIONS, Verdict, baseline_of
from collage.watch.watch_list import Watched, WatchList


def run_watch(
    watch_list: WatchList,
    pythons: Sequence[Path] = (),
    again: bool = False,
    runner: Runner | None = None,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> list[dict[str, Any]]:
    """Measure every watched artifact and say what changed.

    Args:
        watch_list: what is watched.
        pythons: environments that are compared with this one, in turn with it. Without any, this one is compared
            with the last measurement where something in its key changed.
        again: measure although nothing changed.
        runner: where it runs; by default this machine. One of workers has checked the targets.
        listener: is told about every artifact.
        cancel: stops it when set.

    Returns:
        One result for each artifact and environment (docs/watch.md).

    Raises:
        BadInputError: an environment cannot measure.
    """
    chosen = runner or Runner()
    here = this_environment(chosen, cancel)
    others = [environment_of(python, cancel) for python in pythons]
    results = []
    for watched in watch_list.list():
        for other in others or [here]:
            try:
                if other is here:
                    result = _alone(watched, here, again, chosen, listener, cancel)
                else:
                    result = _in_turn(watched, here, other, chosen, listener, cancel)
            # One artifact that cannot be measured takes nothing from the others.
            except (BadInputError, VerificationError, TimingError, OSError) as error:
                listener(Event("watch", f"{watched.name}: it cannot be measured: {error}"))
                found = _Found("failed", f"it cannot be measured: {error}")
                result = _result(watched, other, found)
            results.append(result)
    return results


def is_regression(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something became slower or wrong."""
    return any(result["verdict"] in REGRESSIONS for result in results)


def key_of(watched: Watched, environment: Environment, runner: Runner) -> dict[str, str]:
    """What a measurement depends on: versions of what the plan needs, the machine, this program.

    Raises:
        BadInputError: the file is no artifact.
    """
    needed = sorted({target.backend for target in targets_of(watched.artifact)} | {"collage", "python"})
    versions = {name: environment.versions.get(name, "not installed") for name in needed}
    return {**versions, "hardware": runner.hardware.digest}


@dataclass(frozen=True)
class _Found:
    """What is said of an environment; a measurement keeps it, so that it is said again while nothing changes."""

    verdict: Verdict
    reason: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, verdict: Verdict, reason: str, ratio: Ratio | None) -> _Found:
        if ratio is None:
            return cls(verdict, reason)
        return cls(verdict, reason, ratio.ratio, (ratio.low, ratio.high))


def _alone(
    watched: Watched,
    here: Environment,
    again: bool,
    runner: Runner,
    listener: Listener,
    cancel: threading.Event | None,
) -> dict[str, Any]:
    """This environment against the last measurement that showed no regression."""
    key, records = key_of(watched, here, runner), _own_records(watched)
    if records and records[-1]["key"] == key and not again:
        return _result(watched, here, _said_again(records[-1]))
    listener(Event("watch", f"{watched.name}: measuring this environment"))
    compared = compare(watched.artifact, here, here, runner, cancel)
    found = _against_stored(compared, key, baseline_of(records), is_first=not records)
    _note(watched, key, compared, found)
    return _result(watched, here, found)


def _in_turn(
    watched: Watched,
    here: Environment,
    other: Environment,
    runner: Runner,
    listener: Listener,
    cancel: threading.Event | None,
) -> dict[str, Any]:
    """Another environment against this one."""
    listener(Event("watch", f"{watched.name}: this environment and {other.name} in turn"))
    key = key_of(watched, here, runner)
    compared = compare(watched.artifact, here, other, runner, cancel)
    found = _Found.of(compared.verdict, compared.reason, compared.ratio)
    # The verdict is on the other environment; what was said of this one stays.
    known = [_said(r) for r in _own_records(watched)[-1:] if r["key"] == key]
    own = found if compared.is_fault_here else next(iter(known), _Found("same", "measured"))
    _note(watched, key, compared, own)
    names = sorted({*key} - {"hardware"})
    more = {
        "versions": {n: [here.versions.get(n, ""), other.versions.get(n, "")] for n in names},
        "errors": list(compared.errors),
        "blocks": list(compared.blocks),
    }
    return _result(watched, other, found) | more


def _own_records(watched: Watched) -> list[dict[str, Any]]:
    """Measurements of this very artifact; another one may have had its name."""
    digest = watched.digest
    return [r for r in watched.history if r.get("artifact_sha256", digest) == digest]


def _said(record: Mapping[str, Any]) -> _Found:
    """What was said of a measurement; of one that showed no regression no more than that."""
    if record.get("verdict") not in REGRESSIONS:
        return _Found("same", "measured")
    interval = record.get("interval")
    return _Found(
        record["verdict"],
        record.get("reason", ""),
        record.get("ratio"),
        None if interval is None else (interval[0], interval[1]),
    )


def _said_again(record: Mapping[str, Any]) -> _Found:
    found = _said(record)
    before = "" if found.verdict == "same" else f"; before: {found.reason}"
    return replace(found, reason=f"nothing in its key changed, so it was not measured{before}")


def _against_stored(
    compared: Compared, key: Mapping[str, str], baseline: Mapping[str, Any] | None, is_first: bool
) -> _Found:
    """What a measurement says beside an earlier one."""
    if compared.verdict in ("wrong", "failed"):
        return _Found(compared.verdict, compared.reason)
    if baseline is None:
        nothing = "measured for the first time" if is_first else "no earlier measurement was good"
        return _Found("same", nothing)
    changed = sorted(name for name in key if baseline["key"].get(name) != key[name])
    ratio = by_yardstick(_over_yardstick(compared), baseline["over_yardstick"])
    if baseline["key"]["hardware"] != key["hardware"] or ratio is None:
        return _Found("same", "on another machine, whose times do not compare")
    verdict: Verdict = "same"
    if ratio.low > 1 and ratio.ratio > LEAST_CHANGE:
        verdict = "slower"
    elif ratio.high < 1 and ratio.ratio < 1 / LEAST_CHANGE:
        verdict = "faster"
    reason = (
        f"{', '.join(changed) or 'nothing'} changed; against stored times by the yardstick, which sees large changes "
        "only: give the old environment with --environment to see small ones"
    )
    return _Found.of(verdict, reason, ratio)


def _result(watched: Watched, environment: Environment, found: _Found) -> dict[str, Any]:
    interval = None if found.interval is None else list(found.interval)
    base = {"name": watched.name, "environment": environment.name, "blocks": []}
    return {**base, **asdict(found), "interval": interval}


def _note(watched: Watched, key: Mapping[str, str], compared: Compared, found: _Found) -> None:
    """Keep what was measured of this environment."""
    if not compared.latency_us:
        return
    watched.note(
        {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "artifact_sha256": watched.digest,
            "key": dict(key),
            **asdict(found),
            "latency_us": list(compared.latency_us),
            "over_yardstick": _over_yardstick(compared),
            "error": compared.errors[0],
        }
    )


def _over_yardstick(compared: Compared) -> list[float]:
    pairs = zip(compared.latency_us, compared.yardstick_us, strict=False)
    return [latency / yardstick for latency, yardstick in pairs]

"""`collage watch run`: every watched artifact in each environment."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.environments.environment import environment_of, this_environment
from collage.environments.work import Environment
from collage.events import Event, Listener, ignore
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.watch.comparison import REGRESSIONS, Compared, compare
from collage.watch.stored import LEAST_CHANGE, by_yardstick
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
    others = [environment_of(python) for python in pythons]
    results = []
    for watched in watch_list.list():
        for other in others:
            listener(Event("watch", f"{watched.name}: this environment and {other.name} in turn"))
            compared = compare(watched.artifact, here, other, chosen, cancel)
            results.append(_result(watched, here, other, compared))
            _note(watched, here, compared, chosen)
        if not others:
            results.append(_alone(watched, here, again, chosen, listener, cancel))
    return results


def is_regression(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something became slower or wrong."""
    return any(result["verdict"] in REGRESSIONS for result in results)


def key_of(watched: Watched, environment: Environment, runner: Runner) -> dict[str, str]:
    """What a measurement depends on: versions of what the plan needs, the machine, this program."""
    targets = [Target.parse(text) for text in _targets(watched)]
    needed = sorted({target.backend for target in targets} | {"collage", "python"})
    versions = {name: environment.versions.get(name, "not installed") for name in needed}
    return {**versions, "hardware": runner.hardware.digest}


def _targets(watched: Watched) -> list[str]:
    return [part["target"] for part in read_report(watched.artifact)["partitions"]]


def _alone(
    watched: Watched,
    here: Environment,
    again: bool,
    runner: Runner,
    listener: Listener,
    cancel: threading.Event | None,
) -> dict[str, Any]:
    """This environment against the last measurement."""
    history = watched.history
    key = key_of(watched, here, runner)
    last = history[-1] if history else None
    base: dict[str, Any] = {
        "name": watched.name,
        "environment": here.name,
        "blocks": [],
        "ratio": None,
        "interval": None,
    }
    if last is not None and last["key"] == key and not again:
        return {
            **base,
            "verdict": "same",
            "reason": "nothing in its key changed, so it was not measured",
        }
    listener(Event("watch", f"{watched.name}: measuring this environment"))
    compared = compare(watched.artifact, here, here, runner, cancel)
    _note(watched, here, compared, runner)
    if compared.verdict in ("wrong", "failed"):
        return {**base, "verdict": compared.verdict, "reason": compared.reason}
    if last is None:
        return {**base, "verdict": "same", "reason": "measured for the first time"}
    changed = sorted(name for name in key if last["key"].get(name) != key[name])
    ratio = by_yardstick(_over_yardstick(compared), last["over_yardstick"])
    if last["key"]["hardware"] != key["hardware"] or ratio is None:
        return {**base, "verdict": "same", "reason": "on another machine, whose times do not compare"}
    verdict = "same"
    if ratio.low > 1 and ratio.ratio > LEAST_CHANGE:
        verdict = "slower"
    elif ratio.high < 1 and ratio.ratio < 1 / LEAST_CHANGE:
        verdict = "faster"
    reason = (
        f"{', '.join(changed) or 'nothing'} changed; against stored times by the yardstick, which sees large changes "
        "only: give the old environment with --environment to see small ones"
    )
    return {
        **base,
        "verdict": verdict,
        "reason": reason,
        "ratio": ratio.ratio,
        "interval": [ratio.low, ratio.high],
    }


def _result(
    watched: Watched, here: Environment, other: Environment, compared: Compared
) -> dict[str, Any]:
    backends = {Target.parse(text).backend for text in _targets(watched)}
    ratio = compared.ratio
    return {
        "name": watched.name,
        "environment": other.name,
        "versions": {
            name: [here.versions.get(name, ""), other.versions.get(name, "")]
            for name in sorted(backends | {"collage", "python"})
        },
        "verdict": compared.verdict,
        "reason": compared.reason,
        "ratio": None if ratio is None else ratio.ratio,
        "interval": None if ratio is None else [ratio.low, ratio.high],
        "errors": list(compared.errors),
        "blocks": list(compared.blocks),
    }


def _note(watched: Watched, here: Environment, compared: Compared, runner: Runner) -> None:
    """Keep what was measured of this environment."""
    if not compared.latency_us:
        return
    watched.note(
        {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "key": key_of(watched, here, runner),
            "latency_us": list(compared.latency_us),
            "over_yardstick": _over_yardstick(compared),
            "error": compared.errors[0],
        }
    )


def _over_yardstick(compared: Compared) -> list[float]:
    pairs = zip(compared.latency_us, compared.yardstick_us, strict=False)
    return [latency / yardstick for latency, yardstick in pairs]

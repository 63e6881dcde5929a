"""Finds the nodes with which a target is wrong, crashes or hangs, and writes what shows it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from collage.diagnosis.culprits import Culprit, OutOfTrialsError, find_culprits
from collage.diagnosis.depth import depth_errors, draw_depth, tapped
from collage.diagnosis.output import CULPRIT, PICTURE
from collage.diagnosis.regions import Taken
from collage.diagnosis.reproducing.reproducer import write_reproducer
from collage.diagnosis.reproducing.shrink import Shrunk, shrink
from collage.diagnosis.request import DiagnoseRequest
from collage.diagnosis.trial import Trial
from collage.diagnosis.trials import Trials
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order
from collage.partitioner.graph.model import Model
from collage.runner import Runner

_MOST_REPRODUCERS = 5
_SHRINKING_TRIALS = 12
_SHOWN_NODES = 20


class FaultSearch:
    """One search for faults.

    Args:
        model: the model.
        taken: where to look.
        trials: makes trials.
        request: what was asked.
        work_dir: folder for files of this run.
        runner: where the scripts of reproducers run.
        cancel: stops it when set.
    """

    def __init__(
        self,
        model: Model,
        taken: Taken,
        trials: Trials,
        request: DiagnoseRequest,
        work_dir: Path,
        runner: Runner,
        cancel: threading.Event | None = None,
    ) -> None:
        self._model, self._taken, self._trials, self._runner = model, taken, trials, runner
        self._output, self._most = request.output, request.most_trials
        self._work_dir, self._cancel = work_dir, cancel

    def run(self) -> dict[str, Any]:
        """The part of the report on faults."""
        index = self._model.index
        culprits = find_culprits(index, self._taken.regions, self._test)
        if not all(self._trials.really_hangs(c.nodes) for c in culprits if c.trial.outcome == "hang"):
            culprits = find_culprits(index, self._taken.regions, self._test)
        found = {
            "trials": self._trials.count,
            "regions": self._regions(),
            "culprits": [self._told(number, c) for number, c in enumerate(culprits)],
            "error_by_depth": self._depth(culprits),
        }
        return found | {"trials_in_all": self._trials.count}

    def _test(self, nodes: int) -> Trial:
        if self._trials.count >= self._most and not self._trials.knows(nodes):
            raise OutOfTrialsError
        return self._trials.of(nodes)

    def _regions(self) -> list[dict[str, Any]]:
        """What came of each region that was tried as a whole."""
        found = []
        for nodes in self._taken.regions:
            if self._trials.knows(nodes):
                trial = self._trials.of(nodes)
                found.append({"nodes": nodes.bit_count(), **_outcome(trial)})
            else:
                found.append({"nodes": nodes.bit_count(), "outcome": "not tried"})
        return found

    def _told(self, number: int, culprit: Culprit) -> dict[str, Any]:
        index = self._model.index
        names = [index.nodes[i].name for i in bits(culprit.nodes)]
        told: dict[str, Any] = {
            "nodes": names,
            "operators": _operators(index, culprit.nodes),
            "is_smallest": culprit.is_smallest,
            **_outcome(culprit.trial),
            "values": _values(culprit.trial),
        }
        if culprit.is_smallest and number < _MOST_REPRODUCERS:
            told["reproducer"] = self._reproducer(number, culprit)
        return told

    def _reproducer(self, number: int, culprit: Culprit) -> dict[str, Any]:
        trials, index = self._trials, self._model.index
        model = trials.sub_model(culprit.nodes)
        start = Shrunk(trials.request(model), culprit.trial)
        smallest = shrink(
            start,
            self._work_dir / f"shrunk-{number}",
            trials.run,
            _SHRINKING_TRIALS,
            self._cancel,
        )
        target, version = trials.settings.target, self._runner.facts(trials.settings.target).version
        operators = _operators(index, culprit.nodes)
        what = {
            "wrong": "computes wrong values for",
            "crash": "crashes on",
            "hang": "does not come back from",
            "out of memory": "runs out of memory on",
            "refused": "refuses",
        }[culprit.trial.outcome]
        title = f"{target.backend} {version.split()[0]} {what} {operators}"
        return write_reproducer(
            self._output / f"{CULPRIT}{number}",
            smallest,
            title=title,
            operators=operators,
            runner=self._runner,
            timeout_s=trials.settings.timeout_s,
            cancel=self._cancel,
        )

    def _depth(self, culprits: Sequence[Culprit]) -> dict[str, Any] | None:
        """The error of values by depth, as data and as a picture; None where no region runs and is wrong."""
        wrong = [
            nodes
            for nodes in self._taken.regions
            if self._trials.knows(nodes) and self._trials.of(nodes).outcome == "wrong"
        ]
        if not wrong:
            return None
        index, region = self._model.index, wrong[0]
        folder = self._work_dir / "tapped"
        request = self._trials.request(tapped(self._model, region, folder))
        trial = self._trials.run(replace(request, stop_at_fault=False), "values by depth")
        if trial.outcome not in ("wrong", "right"):
            reason = f"{trial.outcome}: {trial.reason}"
            return {
                "values": [],
                "marks": [],
                "nodes": 0,
                "picture": None,
                "note": f"not known: {reason}",
            }
        errors = depth_errors(index, region, trial)
        place = {node: p for p, node in enumerate(linear_order(index, region))}
        marks = [
            (place[bits(c.nodes)[0]], index.nodes[bits(c.nodes)[0]].name)
            for c in culprits
            if c.is_smallest and bits(c.nodes)[0] in place
        ]
        picture = self._output / PICTURE
        picture.write_text(
            draw_depth(errors, self._trials.settings.tolerance, marks, len(place)), encoding="utf-8"
        )
        note = "" if trial.outcome == "wrong" else "the fault is gone when these values are outputs too"
        values = [{**asdict(e), "error": _finite(e.error)} for e in errors]
        return {
            "values": values,
            "marks": [{"position": position, "node": name} for position, name in marks],
            "nodes": len(place),
            "picture": str(picture),
            "note": note,
        }


def refusals(index: GraphIndex, refused: Mapping[int, str]) -> list[dict[str, Any]]:
    """What the target's guard refuses: operator, reason and how many nodes."""
    counts = Counter((index.nodes[i].op, reason) for i, reason in refused.items())
    return [
        {"op": op, "reason": reason, "nodes": count} for (op, reason), count in counts.most_common()
    ]


def _outcome(trial: Trial) -> dict[str, Any]:
    return {"outcome": trial.outcome, "reason": trial.reason, "error": _finite(trial.error)}


def _values(trial: Trial) -> dict[str, Any] | None:
    wrong = trial.wrong
    return None if wrong is None else {**asdict(wrong), "error": _finite(wrong.error)}


def _finite(error: float) -> float | str:
    """JSON has no infinity."""
    return error if error < float("inf") else "infinite"


def _operators(index: GraphIndex, nodes: int) -> str:
    """`Conv`, `3 nodes: Conv, Add, Relu`."""
    kinds = [index.nodes[i].op for i in bits(nodes)]
    if len(kinds) == 1:
        return kinds[0]
    shown = ", ".join(kinds[:_SHOWN_NODES]) + (" …" if len(kinds) > _SHOWN_NODES else "")
    return f"{len(kinds)} nodes: {shown}"

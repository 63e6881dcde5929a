"""Recognizes a tuning that was made before, by all that its result may depend on.

Invariant: what is not told apart here would be answered with another model's, machine's or caller's result. The weights
count (errors depend on them), and so do candidates, since rules may have changed; how long to search does not.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import DatabaseError
from collage.cost_db.tunings import TuningRecord, TuningStore
from collage.costs.leases import LEASE_S, new_owner, renewed, wait_a_little
from collage.costs.measured_costs import MeasuredCosts
from collage.events import Event, Listener
from collage.options import TuneOptions
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.file_digest import file_digest
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.shapes.sample_shapes import sample_files

# Raised where a tuning chooses by other rules: what was chosen before is not reused.
_SCHEME = "collage-tuning-2"
# The first are part of the model by now, the others say how to tune, not what.
_NO_PART = {
    *("dims", "shapes", "plan", "memory_limit_mib", "pad_masks"),
    *("time_limit_s", "wait_for_worker_s", "wait_for_quiet_s", "fresh"),
}
# They came later: where they are not given, what was known before stays known.
_LATER = (
    *("evaluate", "max_drop", "at_least", "at_most"),
    *("objective", "p99_ms", "max_latency_ms"),
)


class TuningCache:
    """What a database knows of searches like this one.

    Args:
        database: of the team.
        model: the normalized model.
        targets: in the order in which they were given.
        candidates: what may be offered to them.
        costs: knows their versions and the machine.
        options: with the number of threads filled in.
        inputs: the caller's samples, or None.
        labels: the truth of a metric, or None.
        listener: is told when something could not be kept.
    """

    def __init__(
        self,
        database: CostDatabase,
        model: Model,
        targets: Sequence[Target],
        candidates: Sequence[Candidate],
        costs: MeasuredCosts,
        options: TuneOptions,
        inputs: Path | None,
        labels: Path | None,
        listener: Listener,
    ) -> None:
        self._database = database
        self._store = TuningStore(database)
        self._model = model
        self._listener = listener
        keys = [costs.key(Candidate(model.index.all_nodes, target)) for target in targets]
        self._hardware = keys[0].hardware
        parts = [
            *(_SCHEME, version("collage-tuner"), model.sha256),
            [[str(target), key.digest] for target, key in zip(targets, keys, strict=True)],
            _of_candidates(candidates),
            _chosen(options),
            None if inputs is None else _digest(inputs),
            *([] if labels is None else [file_digest(labels)]),
        ]
        self._digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @contextmanager
    def turn(
        self, limit_s: float, cancel: threading.Event | None, until_s: float = math.inf
    ) -> Iterator[TuningRecord | None]:
        """Wait while another tuner makes this search; a caller that makes it itself keeps others waiting meanwhile.

        Args:
            limit_s: what a search that looked for fewer seconds found does not count.
            cancel: stops the waiting.
            until_s: the waiting ends then, by `time.monotonic`; the caller makes the search beside the other tuner.

        Yields:
            What such a search found, or None where the caller is to make it.

        Raises:
            CancelledError: `cancel` was set.
        """
        owner = new_owner()
        waits = False
        while (record := self._find(limit_s)) is None:
            if self._database.claim([self._digest], owner, LEASE_S).granted:
                break
            if not waits:
                waits = True
                self._listener(Event("waiting", "another tuner searches the same; its result will do"))
            if time.monotonic() >= until_s:
                self._listener(
                    Event(
                        "waiting",
                        "the time is up, and another tuner still searches; not waiting for it",
                    )
                )
                yield None
                return
            wait_a_little(cancel)
        if record is not None:
            yield record
            return
        with renewed(self._database, owner, lambda: [self._digest]):
            # The tuner that had the claim before may have kept its result and let go meanwhile.
            yield self._find(limit_s)

    def _find(self, limit_s: float) -> TuningRecord | None:
        record = self._store.find(self._digest)
        return record if record is not None and record.limit_s >= limit_s else None

    def keep(self, plan: Plan, report: Mapping[str, Any], limit_s: float) -> None:
        """Remember what was found; where that fails it is told, and nothing else happens."""
        text = encode_plan(self._model, plan)
        record = TuningRecord(self._digest, self._hardware, limit_s, text, report)
        try:
            self._store.keep(record)
        except DatabaseError as error:
            self._listener(Event("emit", f"what was found could not be remembered: {error}"))


def _chosen(options: TuneOptions) -> dict[str, Any]:
    """The options that the result depends on."""
    fields = TuneOptions.model_fields
    unset = {name for name in _LATER if getattr(options, name) == fields[name].default}
    return options.model_dump(mode="json", exclude=_NO_PART | unset)


def _of_candidates(candidates: Sequence[Candidate]) -> str:
    texts = {candidate.target: str(candidate.target) for candidate in candidates}
    offered = sorted((candidate.nodes, texts[candidate.target]) for candidate in candidates)
    digest = hashlib.sha256()
    for nodes, target in offered:
        digest.update(f"{nodes:x} {target}\n".encode())
    return digest.hexdigest()


def report_again(record: TuningRecord, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The report of a known tuning, as of this run: nothing was measured, and when it was.

    Args:
        record: the tuning.
        seconds: what this run took, per stage.
    """
    report = dict(record.report)
    counts = report["candidates"]
    known = counts["measured"] + counts["from_cache"]
    return {
        **report,
        "candidates": {**counts, "measured": 0, "from_cache": known},
        "known_since": record.created_at.isoformat(timespec="seconds"),
        "seconds": {stage: round(spent, 3) for stage, spent in seconds.items()},
    }


def _digest(inputs: Path) -> str:
    digests = [file_digest(file) for file in sample_files(inputs)]
    return "-".join(digests)

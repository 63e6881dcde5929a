"""Watched artifacts on a server: when each is measured again, and what is kept of it.

A watch whose tuning is done gets the artifact and is due. One that is due becomes a job, which measures the
artifact here, and in turn with each environment of the settings; or, where workers measure, on one of them. Then
it is due again after `COLLAGE_WATCH_EVERY_S`, or when the server starts or its workers change and no machine has its
key any more: the versions of the runtimes in its plan, Python, this program, or the hardware.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog

from collage.backends.sandbox.run import ChildFailed
from collage.cluster.connection import ClusterError, own_version
from collage.cost_db.errors import QuotaExceededError
from collage.cost_db.jobs.job import Job, JobRequest
from collage.cost_db.jobs.jobs import JobStore
from collage.cost_db.jobs.watches import Watch, WatchStore
from collage.partitioner.errors import BadInputError
from collage.partitioner.target import Target
from collage.service.cluster.target_catalog import TargetCatalog
from collage.service.cluster.workers import RemoteWorkers
from collage.service.settings import Settings
from collage.service.storage.blobs import BlobFiles, BlobMissingError
from collage.watch.verdicts import baseline_of

_AFTER_QUOTA_S = 60.0

_log = structlog.get_logger("collage.watching")


class Watching:
    """Makes jobs of watches that are due, and keeps what they find. Safe from several servers."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobStore,
        watches: WatchStore,
        files: BlobFiles,
        catalog: TargetCatalog,
        workers: RemoteWorkers,
    ) -> None:
        self._settings = settings
        self._jobs, self._watches = jobs, watches
        self._files, self._catalog, self._workers = files, catalog, workers
        self._machines: frozenset[str] | None = None  # kinds of them, when last looked at

    def look(self) -> int:
        """Make jobs of all that is due; returns how many. Changed versions are looked for where machines changed."""
        if not self._settings.runners:
            return 0  # a server that runs no jobs
        if self._machines is None:
            self._watches.schedule(self._settings.watch_every_s)
        if (machines := self._kinds()) != self._machines:
            self._look_for_changes()
            self._machines = machines
        for waiting in self._watches.waiting():
            self._settle(waiting)
        made = 0
        while (watch := self._watches.take_due(self._settings.watch_every_s)) is not None:
            made += self._make_job(watch) is not None
        return made

    def run_now(self, watch: Watch) -> Job:
        """A job for a watch, whether it is due or not.

        Raises:
            BadInputError: it has no artifact.
            QuotaExceededError: its owner has too many jobs.
        """
        if watch.artifact_sha256 is None:
            raise BadInputError(
                f"watch {watch.id} has no artifact: {watch.problem or 'its tuning is not done yet'}"
            )
        return self._jobs.create(
            {"name": watch.name, "targets": list(watch.targets), "options": {}, "watch": watch.id},
            watch.owner,
            request=JobRequest(
                model_sha256=watch.artifact_sha256,
                name=watch.name,
                webhook_url=watch.webhook_url,
                kind="watch",
            ),
        )

    def history(self, job: Job) -> list[dict[str, Any]]:
        """The earlier measurements that a job of a watch needs: its baseline, and the last; [] for other jobs."""
        if job.kind != "watch":
            return []
        records = self._watches.measurements(job.spec["watch"])
        baseline = baseline_of(records)
        needed = [record for record in records[:-1] if record is baseline] + list(records[-1:])
        return [dict(record) for record in needed]

    def keep(self, job: Job, report: Mapping[str, Any]) -> None:
        """Keep what a job of a watch found."""
        for result in report["results"]:
            result["name"] = job.name
        measured = report["measured"][-1] if report["measured"] else None
        self._watches.note(job.spec["watch"], job.id, report["results"], measured)
        self._watches.note_problem(job.spec["watch"], None)

    def keep_failure(self, job: Job, reason: str) -> None:
        """Keep why a job of a watch could not measure."""
        self._watches.note_problem(job.spec["watch"], f"job {job.id} failed: {reason}")

    def _kinds(self) -> frozenset[str]:
        """The kinds of machine that measure; this one has no name."""
        if not self._workers.measures:
            return frozenset()
        try:
            return frozenset(worker.announced.kind for worker in self._workers.workers())
        except ClusterError:  # it is asked again soon
            return self._machines or frozenset()

    def _look_for_changes(self) -> None:
        watches = self._watches.measurable()
        if not watches:
            return
        try:
            keys = self._worker_keys() if self._workers.measures else [self._own_key()]
        except (ChildFailed, ClusterError) as error:
            _log.error("watches cannot tell what changed", error=str(error))
            return
        for watch in watches:
            last = self._watches.last_measured(watch.id)
            if last is not None and (changed := self._changes(watch, last, keys)):
                _log.info("a watch is due, since its key changed", watch=watch.id, changed=changed)
                self._watches.make_due(watch.id)

    def _changes(
        self, watch: Watch, last: Mapping[str, Any], keys: Sequence[Mapping[str, str]]
    ) -> list[str]:
        """What differs from the last measurement: names in the key, and environments that are new."""
        backends = _backends(watch)
        if self._workers.measures:  # the job would fail without a worker that has them all
            keys = [key for key in keys if backends <= set(key)]
        names = (*backends, "collage", "python", "hardware")
        differing = [
            [name for name in names if last["key"].get(name) != key.get(name, "not installed")]
            for key in keys
        ]
        changed = min(differing, key=len, default=[])
        if self._workers.measures:
            return sorted(changed)
        known = {run.environment for run in self._watches.runs(watch.id)}
        return sorted(changed) + sorted(set(self._settings.environments) - known)

    def _own_key(self) -> dict[str, str]:
        """Versions and hardware of this machine."""
        catalog = self._catalog.get()
        versions = {entry["name"]: entry["version"] or "not installed" for entry in catalog["targets"]}
        own = {"collage": own_version(), "python": platform.python_version()}
        return {**versions, **own, "hardware": catalog["hardware"]["digest"]}

    def _worker_keys(self) -> list[dict[str, str]]:
        """The same of each worker.

        Raises:
            ClusterError: the scheduler cannot be reached.
        """
        said = [worker.announced for worker in self._workers.workers()]
        return [
            {**a.backends, "collage": a.collage, "python": a.python, "hardware": a.hardware.digest}
            for a in said
        ]

    def _settle(self, watch: Watch) -> None:
        """Give a watch its artifact, if its tuning has ended."""
        job = self._jobs.get(watch.job_id)
        if job is None:
            self._watches.note_problem(watch.id, "its tuning was removed before it was done")
        elif job.state == "done" and job.result.artifact and job.result.report:
            try:
                report = orjson.loads(self._files.read(job.result.report))
                targets = list(dict.fromkeys(str(part["target"]) for part in report["partitions"]))
                self._watches.give_artifact(watch.id, job.result.artifact, targets)
            except (BadInputError, BlobMissingError) as error:
                self._watches.note_problem(watch.id, str(error))
        elif job.state == "failed":
            self._watches.note_problem(watch.id, f"its tuning failed: {job.reason or ''}")
        elif job.state == "cancelled":
            self._watches.note_problem(watch.id, "its tuning was cancelled")

    def _make_job(self, watch: Watch) -> Job | None:
        try:
            return self.run_now(watch)
        except QuotaExceededError as error:
            self._watches.note_problem(watch.id, str(error))
            self._watches.make_due(watch.id, _AFTER_QUOTA_S)
        except BadInputError as error:  # such as an artifact that is not kept any more
            self._watches.note_problem(watch.id, str(error))
        return None


def _backends(watch: Watch) -> set[str]:
    return {Target.parse(target).backend for target in watch.targets}

"""Runs queued jobs, each in a process of its own (`job_process`), and stores what happens.

A runner thread takes the next job, renews its lease while the process lives, and ends the job with its
result or a reason. Everything is in the database before it is acted upon: when a server is killed, the
lease ends and the job is queued again.

A job whose workers are not there is parked: it waits in the queue, and holds no runner. A job that cannot
be started, for whatever reason, fails with that reason.

A runner that lost its lease kills its process and writes nothing more. A job goes back to the queue
when the server stops, when the database is away for too long, and when the process is suspended for a
whole lease. A full disk fails the job.
"""

from __future__ import annotations

import platform
import shutil
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import structlog

from collage.cost_db.atlas import AtlasStore
from collage.cost_db.errors import DatabaseUnavailableError, StaleAttemptError
from collage.cost_db.jobs.job import Job, JobResult
from collage.cost_db.jobs.jobs import JobStore
from collage.options import TuneOptions
from collage.partitioner.errors import CollageError
from collage.service.cluster.workers import RemoteWorkers
from collage.service.jobs.job_child import JobChild
from collage.service.jobs.job_process import Request
from collage.service.jobs.kinds import ONNX_TYPE, ZIP_TYPE, summary_of
from collage.service.jobs.retention import Retention
from collage.service.jobs.summary import as_json_bytes
from collage.service.jobs.warm_process import WarmProcesses
from collage.service.jobs.watching import Watching
from collage.service.settings import Settings
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.spool import Spool
from collage.service.telemetry.metrics import Metrics
from collage.service.telemetry.tracing import Span, Tracing

_log = structlog.get_logger("collage.runner")

JSON_TYPE = "application/json"

_HOUSEKEEPING_S = 3600.0
_REASON_CHARACTERS = 2000
_UNPARK_S = 2.0


class _AbandonedError(Exception):
    """The job is not ours any more, or the server stops."""


class JobRunner:
    """The runner threads of one server."""

    def __init__(
        self,
        settings: Settings,
        *,
        jobs: JobStore,
        files: BlobFiles,
        spool: Spool,
        retention: Retention,
        watching: Watching,
        atlas: AtlasStore,
        remote_workers: RemoteWorkers,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._files = files
        self._spool = spool
        self._retention = retention
        self.watching = watching
        self._atlas = atlas
        self._remote_workers = remote_workers
        self._metrics = metrics
        self._tracing = tracing
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._warm = WarmProcesses(spool.path)
        self.name = f"{platform.node()}-{uuid.uuid4().hex[:8]}"
        self.current: dict[str, str] = {}

    @property
    def workers(self) -> list[str]:
        """The names of the runner threads, as jobs mention them."""
        return [f"{self.name}-{number}" for number in range(self._settings.runners)]

    def start(self, cores: Sequence[int] = ()) -> None:
        """Start the threads; their jobs run on these cores, by default on those of this process."""
        self._warm.cores = list(cores)
        self._threads = [
            threading.Thread(target=self._run_jobs, args=(worker,), name=worker, daemon=True)
            for worker in self.workers
        ]
        self._threads.append(
            threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Requeue running jobs and end the threads."""
        self._stopping.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._warm.close()

    def wake(self) -> None:
        """Look at the queue now."""
        self._wake.set()

    def _run_jobs(self, worker: str) -> None:
        while not self._stopping.is_set():
            try:
                job = self._jobs.next_queued(worker, self._settings.lease_s)
                if job is None:
                    self._load()
                    self._wake.wait(self._settings.poll_s)
                    self._wake.clear()
                    continue
                self.current[worker] = job.id
                self._run(job)
                self.current.pop(worker, None)
                self._load()
            except Exception as error:  # a database away for long must not end the thread
                trace = None if isinstance(error, CollageError) else error
                _log.error("runner failed; it goes on", worker=worker, error=str(error), exc_info=trace)
                self._stopping.wait(2.0)
            finally:
                self.current.pop(worker, None)

    def _load(self) -> None:
        """Let one process more than there are runners wait; libraries are loaded when no job runs."""
        if not self.current and not self._stopping.is_set():
            self._warm.fill(len(self.workers) + 1)

    def _keep_house(self) -> None:
        clean_at = requeue_at = time.monotonic()
        while not self._stopping.is_set():
            try:
                if time.monotonic() >= requeue_at:
                    requeue_at = time.monotonic() + self._settings.lease_s / 3
                    for job in self._jobs.requeue_expired():
                        _log.warning("a job had lost its worker", job=job.id, state=job.state)
                        self._wake.set()
                self._unpark()
                if self.watching.look():
                    self._wake.set()
                # Costs of an older database; a part of them at a time, so that nothing waits for it.
                self._atlas.count_all(until=lambda: True)
                if time.monotonic() >= clean_at:
                    clean_at += _HOUSEKEEPING_S
                    if removed := self._retention.tidy():
                        _log.info("jobs are not kept any more", jobs=removed)
            except Exception as error:  # as above
                _log.error("housekeeping failed; it goes on", error=str(error))
            self._stopping.wait(min(self._settings.lease_s / 3, _UNPARK_S))

    def _unpark(self) -> None:
        """Let parked jobs run whose workers have come."""
        if not self._remote_workers.measures:
            return
        for job in self._jobs.parked():
            if self._remote_workers.lacking(list(job.spec["targets"])) is None:
                self._jobs.unpark(job.id)
                self._wake.set()

    def _run(self, job: Job) -> None:
        log = _log.bind(job=job.id, attempt=job.attempt)
        log.info("job starts", targets=job.spec.get("targets"))
        begin = time.monotonic()
        state = "abandoned"
        directory = self._spool.path / f"job-{job.id}-{job.attempt}"
        facts = {"collage.job": job.id, "collage.attempt": job.attempt}
        try:
            directory.mkdir(mode=0o700)
            if self._park(job):
                return
            with self._tracing.job(facts) as span:
                message = self._carry_out(job, directory, span)
                state = self._end(job, message)
                span.set({"collage.state": state})
                if state == "failed":
                    span.fail(message["error"]["reason"])
        except (_AbandonedError, StaleAttemptError, DatabaseUnavailableError) as reason:
            log.warning("job given up", reason=str(reason))
        except Exception as error:  # whatever it is, the next attempt would meet it again
            is_known = isinstance(error, CollageError | OSError)
            said = str(error) if is_known else _named(error)
            log.error("job cannot be carried out", error=said, exc_info=None if is_known else error)
            self._jobs.finish(
                job.id, "failed", attempt=job.attempt, reason=_short(said, _REASON_CHARACTERS)
            )
            state = "failed"
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        self._metrics.jobs_ended.labels(state).inc()
        self._metrics.job_seconds.observe(time.monotonic() - begin)
        log.info("job ends", state=state, seconds=round(time.monotonic() - begin, 1))

    def _park(self, job: Job, lacking: str | None = None) -> bool:
        """Put the job back where it may wait for workers and none has its targets."""
        if job.kind != "tune":  # others run on this machine
            return False
        wait_s = TuneOptions.from_json(job.spec["options"]).wait_for_worker_s
        left_s = wait_s - (datetime.now(UTC) - job.created_at).total_seconds()
        if not self._remote_workers.measures or left_s <= 0:
            return False
        missing = lacking or self._remote_workers.lacking(list(job.spec["targets"]))
        if missing is None:
            return False
        self._jobs.park(
            job.id, job.attempt, left_s, f"{missing}; it waits {left_s:.0f} s at most for one"
        )
        return True

    def _carry_out(self, job: Job, directory: Path, span: Span) -> dict[str, Any]:
        """The process's last message: `result` or `error`."""
        assert job.model_sha256 is not None
        work_dir = directory / "work"
        work_dir.mkdir()
        # The uploaded name is never a path here.
        source = directory / "model"
        self._files.copy_to(job.model_sha256, source)
        inputs = None
        if job.spec.get("inputs_sha256"):
            inputs = directory / "inputs.npz"
            self._files.copy_to(job.spec["inputs_sha256"], inputs)
        request = Request(
            source=str(source),
            targets=list(job.spec["targets"]),
            options=self._options(job),
            database_url=self._settings.database_url,
            work_dir=str(work_dir),
            inputs=str(inputs) if inputs else None,
            scheduler=self._settings.scheduler,
            certificates=_text(self._settings.scheduler_certificates),
            kind=job.kind,
            environments=dict(self._settings.environments),
            history=self.watching.history(job),
        )
        with JobChild(request, self._warm.take()) as child:
            message = self._attend(job, child, span)
            started = "warm" if child.was_loaded else "cold"
            self._metrics.jobs_started.labels(started).inc()
            _log.info("job process", job=job.id, started=started, modules=child.modules_before)
            return message

    def _options(self, job: Job) -> dict[str, Any]:
        if job.kind != "tune":
            return dict(job.spec["options"])
        return {
            "wait_for_quiet_s": self._settings.wait_for_quiet_s,
            **job.spec["options"],
            # That waiting is done here, where it holds no process.
            "wait_for_worker_s": 0.0,
        }

    def _attend(self, job: Job, child: JobChild, span: Span) -> dict[str, Any]:
        settings = self._settings
        begin = renewed = looked = moved = time.monotonic()
        while True:
            message = child.next_message(timeout_s=min(settings.poll_s, 0.25))
            now = time.monotonic()
            if message is not None and "event" in message:
                event = message["event"]
                # The report comes with the result; in the list of events it would be there twice.
                event["data"].pop("report", None)
                if normalized := event["data"].get("normalized_sha256"):
                    self._jobs.note_normalized(job.id, normalized, attempt=job.attempt)
                names = ("stage", "message", "done", "total", "share_done", "remaining_s")
                shown = {name: event.get(name) for name in names}
                self._say(job, "progress", event, progress=shown)
                _trace(span, event)
            elif message is not None:
                return message
            if self._stopping.is_set():
                # That says nothing of the job: it is no lost attempt.
                self._jobs.give_back(job.id, job.attempt)
                raise _AbandonedError("the server stops")
            if now - renewed > settings.lease_s / 3:
                renewed = now
                if not self._jobs.renew_lease(job.id, job.attempt, settings.lease_s):
                    raise _AbandonedError("its lease was lost")
            if now - looked > settings.poll_s and not child.is_stopping:
                looked = now
                if self._jobs.is_cancel_requested(job.id):
                    child.ask_to_stop()
                if not child.is_suspended():
                    moved = now
                elif now - moved > settings.lease_s:
                    self._give_back(job, "its process was suspended for longer than a lease")
            if 0 < settings.job_time_limit_s < now - begin:
                reason = f"it took longer than the server's limit of {settings.job_time_limit_s:g} s"
                return {"error": {"kind": "time-limit", "reason": reason}}

    def _give_back(self, job: Job, reason: str) -> NoReturn:
        # Others may take it at once; measured costs are stored.
        self._jobs.renew_lease(job.id, job.attempt, 0.0)
        raise _AbandonedError(reason)

    def _end(self, job: Job, message: dict[str, Any]) -> str:
        if "result" in message:
            made = message["result"]
            if job.kind == "watch":
                self.watching.keep(job, made["report"])
            summary = summary_of(job.kind, made["report"])
            result = self._result(job, made)
            nothing_yet = {"done": None, "total": None}
            progress = {"stage": "done", "message": "done", **nothing_yet, "summary": summary}
            self._say(job, "summary", summary, progress=progress)
            self._jobs.finish(job.id, "done", attempt=job.attempt, result=result)
            if job.kind == "tune":
                self._count_candidates(made["report"])
            return "done"
        error = message["error"]
        if error["kind"] == "cancelled" or self._jobs.is_cancel_requested(job.id):
            self._jobs.finish(job.id, "cancelled", attempt=job.attempt, reason="cancelled")
            return "cancelled"
        if error["kind"] == "no-worker" and self._park(job, error["reason"]):
            return "parked"
        if error["kind"] == "database-unavailable":
            self._give_back(job, error["reason"])
        if job.kind == "watch":
            self.watching.keep_failure(job, error["reason"])
        self._say(job, "failure", error)
        self._jobs.finish(job.id, "failed", attempt=job.attempt, reason=error["reason"])
        return "failed"

    def _result(self, job: Job, made: dict[str, Any]) -> JobResult:
        """What a job made, stored."""
        kept: dict[str, str] = {}
        if made["artifact"] is not None:
            media_type = ONNX_TYPE if job.kind == "tune" else ZIP_TYPE
            store = partial(self._files.keep_file, Path(made["artifact"]))
            kept["artifact"] = self._retention.keep(store, media_type).sha256
        for name in ("report", "plan"):
            if made[name] is not None:
                store = partial(self._files.keep_bytes, as_json_bytes(made[name]))
                kept[name] = self._retention.keep(store, JSON_TYPE).sha256
        return JobResult(**kept)

    def _say(
        self, job: Job, kind: str, data: dict[str, Any], progress: dict[str, Any] | None = None
    ) -> None:
        self._jobs.append_event(job.id, kind, data, attempt=job.attempt, progress=progress)

    def _count_candidates(self, report: dict[str, Any]) -> None:
        counts = report.get("candidates", {})
        for outcome in ("measured", "infeasible", "from_cache"):
            self._metrics.candidates.labels(outcome).inc(counts.get(outcome, 0))


def _named(error: Exception) -> str:
    return f"the server could not carry it out: {type(error).__name__}: {error}"


def _short(text: str, characters: int) -> str:
    """The text, or its beginning, without what no database keeps."""
    plain = text.replace("\0", "").encode("utf-8", "replace").decode()
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _trace(span: Span, event: dict[str, Any]) -> None:
    """A measurement becomes a child of its job's span."""
    data = event["data"]
    if event["stage"] == "measure" and "seconds" in data:
        facts = {
            f"collage.{name}": data.get(name) for name in ("target", "nodes", "latency_us", "reason")
        }
        span.child("measure", data["seconds"], facts)

"""Rows as the API and the pages show them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from collage.cost_db.jobs.job import Job, Kind
from collage.partitioner.errors import BadInputError
from collage.service.api_models import (
    DiagnosisSummaryView,
    JobLinks,
    JobView,
    ProgressView,
    SummaryView,
    WatchSummaryView,
    WebhookView,
    WorkerView,
)
from collage.service.jobs.kinds import check_options
from collage.service.jobs.webhooks import shown_url
from collage.service.services import Services

_FAULT_CHARACTERS = 300
_SUMMARIES: Mapping[str, type[SummaryView | DiagnosisSummaryView | WatchSummaryView]] = {
    "tune": SummaryView,
    "diagnose": DiagnosisSummaryView,
    "watch": WatchSummaryView,
}


def job_view(services: Services, job: Job) -> JobView:
    """A job with its place in the queue and its links."""
    places = services.jobs.places_in_queue([job.id] if job.state == "queued" else [])
    return _view(job, places.get(job.id), has_plan=True)


def job_views(services: Services, jobs: Sequence[Job]) -> list[JobView]:
    """Jobs with their places in the queue and their links; without plans, which may be large."""
    places = services.jobs.places_in_queue([job.id for job in jobs if job.state == "queued"])
    return [_view(job, places.get(job.id), has_plan=False) for job in jobs]


def _view(job: Job, position: int | None, *, has_plan: bool) -> JobView:
    base = f"/v1/jobs/{job.id}"
    stored = _Stored(job.spec, job.kind)
    options = stored.options()
    if options and not has_plan:
        options.pop("plan", None)
    targets, rerun_of = stored.targets(), stored.text("rerun_of")
    progress, summary = _progress(stored, job)
    webhook = None
    if job.webhook_url is not None:
        webhook = WebhookView(
            url=shown_url(job.webhook_url), state=job.webhook_state, tries=job.webhook_tries
        )
    return JobView(
        id=job.id,
        kind=job.kind,
        state=job.state,
        name=job.name,
        owner=job.owner,
        labels=list(job.labels),
        note=job.note,
        model_sha256=job.model_sha256,
        normalized_sha256=job.normalized_sha256,
        targets=targets,
        options=options,
        rerun_of=rerun_of,
        damaged="; ".join(stored.faults) or None,
        webhook=webhook,
        position=position,
        progress=progress,
        summary=summary,
        reason=job.reason,
        attempt=job.attempt,
        worker=job.worker,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        links=JobLinks(
            self=base,
            events=f"{base}/events",
            artifact=f"{base}/artifact" if job.result.artifact else None,
            report=f"{base}/report" if job.result.report else None,
            plan=f"{base}/plan" if job.result.plan else None,
            picture=f"{base}/picture" if job.kind == "diagnose" and job.result.report else None,
            page=f"/jobs/{job.id}",
        ),
    )


class _Stored:
    """What a job's row says, read field by field: what is damaged becomes a fault, never an error."""

    def __init__(self, spec: Mapping[str, Any], kind: Kind) -> None:
        self._spec, self._kind = spec, kind
        self.faults: list[str] = []

    def options(self) -> dict[str, Any] | None:
        try:
            check_options(self._kind, self._spec["options"])
            return dict(self._spec["options"])
        except (KeyError, AttributeError, TypeError, BadInputError) as error:
            said = str(error) if isinstance(error, BadInputError) else "they are missing"
            self.faults.append(f"its options cannot be read: {said}"[:_FAULT_CHARACTERS])
            return None

    def targets(self) -> list[str]:
        found = self._spec.get("targets")
        if isinstance(found, list) and all(isinstance(text, str) for text in found):
            return list(found)
        self.faults.append("its targets cannot be read")
        return []

    def text(self, name: str) -> str | None:
        found = self._spec.get(name)
        return found if isinstance(found, str) else None


def _progress(
    stored: _Stored, job: Job
) -> tuple[ProgressView | None, SummaryView | DiagnosisSummaryView | WatchSummaryView | None]:
    if not job.progress:
        return None, None
    try:
        progress = dict(job.progress)
        summary = progress.pop("summary", None)
        made = _SUMMARIES[job.kind](**summary) if summary else None
        return ProgressView(**progress), made
    except (ValidationError, TypeError, ValueError, RecursionError):
        stored.faults.append("its progress cannot be read")
        return None, None


def worker_views(services: Services) -> list[WorkerView]:
    """Workers that measure elsewhere, this server's runners, and busy runners of other servers.

    Raises:
        ClusterError: the scheduler cannot be reached.
    """
    return [*measuring_views(services), *runner_views(services)]


def measuring_views(services: Services) -> list[WorkerView]:
    """Workers on other machines.

    Raises:
        ClusterError: the scheduler cannot be reached.
    """
    return [
        WorkerView(
            name=worker.name,
            role="measures",
            state="busy" if worker.busy else "idle",
            job=None,
            backends=sorted(worker.announced.backends),
            host=worker.announced.host,
            label=worker.announced.hardware.label,
            hardware=worker.announced.hardware.describe(),
        )
        for worker in services.remote_workers.workers()
    ]


def runner_views(services: Services) -> list[WorkerView]:
    """This server's runners, and those of other servers that have a job now."""
    catalog = services.catalog.get()
    elsewhere = services.remote_workers.measures
    names = [entry["name"] for entry in catalog["targets"] if entry["available"]]
    here = services.runner.current
    views = [
        WorkerView(
            name=worker,
            role="runs jobs",
            state="busy" if worker in here else "idle",
            job=here.get(worker),
            backends=[] if elsewhere else names,
            host=platform.node(),
            label=catalog["hardware"]["label"],
            hardware=catalog["hardware"]["description"],
        )
        for worker in services.runner.workers
    ]
    known = {view.name for view in views}
    for job in services.jobs.list(state="running").items:
        if job.worker is not None and job.worker not in known:
            other = WorkerView(
                name=job.worker,
                role="runs jobs",
                state="busy",
                job=job.id,
                backends=[],
                host="",
                label="",
                hardware="",
            )
            views.append(other)
    return views

"""Rows as the API and the pages show them."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from collage.cost_db.jobs.job import Job
from collage.service.api_models import JobLinks, JobView, ProgressView, SummaryView, WorkerView
from collage.service.services import Services


def job_view(services: Services, job: Job) -> JobView:
    """A job with its place in the queue and its links."""
    (view,) = job_views(services, [job])
    return view


def job_views(services: Services, jobs: Sequence[Job]) -> list[JobView]:
    """Jobs with their places in the queue and their links."""
    places = services.jobs.places_in_queue([job.id for job in jobs if job.state == "queued"])
    return [_view(job, places.get(job.id)) for job in jobs]


def _view(job: Job, position: int | None) -> JobView:
    base = f"/v1/jobs/{job.id}"
    progress = dict(job.progress) if job.progress else None
    summary = progress.pop("summary", None) if progress else None
    return JobView(
        id=job.id,
        state=job.state,
        name=job.spec["name"],
        owner=job.owner,
        model_sha256=job.model_sha256,
        targets=list(job.spec["targets"]),
        options=dict(job.spec["options"]),
        position=position,
        progress=ProgressView(**progress) if progress else None,
        summary=SummaryView(**summary) if summary else None,
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
            page=f"/jobs/{job.id}",
        ),
    )


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

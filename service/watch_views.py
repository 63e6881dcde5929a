"""Watches and what their measurements found, as the API and the pages show them."""

from __future__ import annotations

from datetime import UTC, datetime

from collage.cost_db.jobs.watches import Watch, WatchRun
from collage.service.api_models import WatchLinks, WatchRunView, WatchView
from collage.service.services import Services


def watch_view(services: Services, watch: Watch) -> WatchView:
    """A watch with its last measurement."""
    base = f"/v1/watches/{watch.id}"
    runs = services.watches.runs(watch.id, 1)
    return WatchView(
        id=watch.id,
        name=watch.name,
        owner=watch.owner,
        created_at=watch.created_at,
        artifact_sha256=watch.artifact_sha256,
        targets=list(watch.targets),
        problem=watch.problem,
        due_at=None if watch.due is None else datetime.fromtimestamp(watch.due, UTC),
        last=run_view(runs[0]) if runs else None,
        links=WatchLinks(
            self=base,
            history=f"{base}/history",
            job=f"/v1/jobs/{watch.job_id}",
            page=f"/watches#watch-{watch.id}",
        ),
    )


def run_view(run: WatchRun) -> WatchRunView:
    """What one measurement found."""
    measured = run.measured or {}
    return WatchRunView(
        job=run.job_id,
        environment=run.environment,
        created_at=run.created_at,
        verdict=run.verdict,  # type: ignore[arg-type]
        ratio=run.result.get("ratio"),
        interval=run.result.get("interval"),
        reason=str(run.result.get("reason", "")),
        latency_us=measured.get("latency_us"),
        over_yardstick=measured.get("over_yardstick"),
        versions=measured.get("key"),
    )

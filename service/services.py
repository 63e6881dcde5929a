"""Everything that routes need, made once for an app and injected by FastAPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from collage.cost_db.atlas import AtlasStore
from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.jobs import JobStore
from collage.cost_db.jobs.removal import JobRemoval
from collage.cost_db.jobs.watches import WatchStore
from collage.cost_db.jobs.webhooks import WebhookStore
from collage.cost_db.stored_models import BlobRegister, ModelStore
from collage.cost_db.tokens import TokenStore
from collage.service.cluster.target_catalog import TargetCatalog
from collage.service.cluster.workers import RemoteWorkers
from collage.service.http.rates import Rates
from collage.service.http.slots import Slots
from collage.service.http.token_watch import TokenWatch
from collage.service.jobs.event_feed import EventFeed
from collage.service.jobs.retention import Retention
from collage.service.jobs.runner import JobRunner
from collage.service.jobs.watching import Watching
from collage.service.jobs.webhooks import WebhookSender
from collage.service.settings import Settings
from collage.service.storage.blobs import BlobFiles
from collage.service.storage.graph_cache import GraphCache
from collage.service.storage.spool import Spool
from collage.service.telemetry.metrics import Metrics
from collage.service.telemetry.tracing import Tracing


@dataclass(frozen=True)
class Services:
    """The parts of one server."""

    settings: Settings
    database: CostDatabase
    jobs: JobStore
    watches: WatchStore
    models: ModelStore
    tokens: TokenStore
    token_watch: TokenWatch
    register: BlobRegister
    files: BlobFiles
    spool: Spool
    runner: JobRunner
    retention: Retention
    webhooks: WebhookSender
    feed: EventFeed
    remote_workers: RemoteWorkers
    catalog: TargetCatalog
    graphs: GraphCache
    metrics: Metrics
    rates: Rates
    uploads: Slots
    streams: Slots

    @classmethod
    def build(cls, settings: Settings, metrics: Metrics, tracing: Tracing) -> Services:
        """Open the database and the blobs, and make the rest over them; nothing runs yet."""
        database = CostDatabase(settings.database_url)
        spool = Spool(settings.spool_dir)
        files = BlobFiles(settings.resolved_blob_url, spool.path)
        jobs = JobStore(database)
        register = BlobRegister(database)
        tokens = TokenStore(database)
        remote_workers = RemoteWorkers(settings)
        catalog = TargetCatalog(remote_workers)
        watches = WatchStore(database)
        retention = Retention(settings, JobRemoval(database), register, files)
        return cls(
            settings=settings,
            database=database,
            jobs=jobs,
            watches=watches,
            models=ModelStore(database),
            tokens=tokens,
            token_watch=TokenWatch(tokens.is_valid, settings.needs_tokens),
            register=register,
            files=files,
            spool=spool,
            runner=JobRunner(
                settings,
                jobs=jobs,
                files=files,
                spool=spool,
                retention=retention,
                watching=Watching(settings, jobs, watches, files, catalog, remote_workers),
                atlas=AtlasStore(database),
                remote_workers=remote_workers,
                metrics=metrics,
                tracing=tracing,
            ),
            retention=retention,
            webhooks=WebhookSender(settings, WebhookStore(database)),
            feed=EventFeed(jobs.events, jobs.event_counts, settings.poll_s),
            remote_workers=remote_workers,
            catalog=catalog,
            graphs=GraphCache(files, spool),
            metrics=metrics,
            rates=Rates(),
            uploads=Slots("uploads", settings.max_parallel_uploads, settings.max_uploads_each),
            # No caller takes them all: the others see their jobs too.
            streams=Slots("streams", settings.max_event_streams, -(-settings.max_event_streams // 2)),
        )

    def close(self) -> None:
        """Stop the runner and give everything back."""
        self.runner.stop()
        self.webhooks.stop()
        self.database.close()
        self.spool.close()


async def get_services(request: Request) -> Services:
    """The services of the app that answers this request."""
    # Async, though it waits for nothing: FastAPI would call it in a thread.
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


InjectedServices = Annotated[Services, Depends(get_services)]

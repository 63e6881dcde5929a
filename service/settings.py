"""Every setting of the server, from the environment as `COLLAGE_<NAME>`; docs/settings.md lists them."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from collage.cost_db.connections import default_url

MIB = 1 << 20


def _data_dir() -> Path:
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "collage"


class Settings(BaseSettings):
    """Settings of one server; each field has its line in docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix="COLLAGE_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    database_url: str = Field(default_factory=default_url)
    data_dir: Path = Field(default_factory=_data_dir)
    blob_url: str | None = None
    authentication: Literal["auto", "on"] = "auto"
    allowed_hosts: tuple[str, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    max_upload_bytes: int = Field(default=4096 * MIB, ge=1)
    max_parallel_uploads: int = Field(default=4, ge=1)
    max_event_streams: int = Field(default=500, ge=1)
    runners: int = Field(default=1, ge=0, le=64)
    server_cores: int = Field(default=0, ge=0)
    scheduler: str | None = None
    scheduler_certificates: Path | None = None
    lease_s: float = Field(default=30.0, ge=1)
    poll_s: float = Field(default=0.5, gt=0, le=10)
    job_time_limit_s: float | None = Field(default=None, gt=0)
    keep_jobs_days: float | None = Field(default=None, gt=0, le=36_500)
    keep_results_bytes: int | None = Field(default=None, ge=0)
    webhook_hosts: tuple[str, ...] = ()
    webhook_secret: SecretStr | None = Field(default=None, min_length=16)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Settings:
        if self.webhook_hosts and self.webhook_secret is None:
            raise ValueError(
                "COLLAGE_WEBHOOK_HOSTS needs COLLAGE_WEBHOOK_SECRET, of 16 characters at least"
            )
        return self

    @property
    def resolved_blob_url(self) -> str:
        """Where models and artifacts lie: `blob_url`, or the folder `blobs` in the data folder."""
        return self.blob_url or (self.data_dir.expanduser().resolve() / "blobs").as_uri()

    @property
    def spool_dir(self) -> Path:
        """Where uploads arrive and jobs work; nothing in it outlives its request or job."""
        return self.data_dir.expanduser().resolve() / "spool"

    @property
    def is_loopback(self) -> bool:
        """True when the server can be reached from this machine only."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def needs_tokens(self) -> bool:
        """True unless the server is bound to loopback and `authentication` is `auto`."""
        return self.authentication == "on" or not self.is_loopback

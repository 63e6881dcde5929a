"""Every setting of the server, from the environment as `COLLAGE_<NAME>`; docs/settings.md lists them."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from collage.cost_db.connections import default_url
from collage.partitioner.errors import BadInputError

MIB = 1 << 20

_PREFIX = "COLLAGE_"
# Names that other programs of ours read.
_OTHERS = (
    "CHILD_MEMORY_BYTES",
    "DATABASE_HOST",
    "DATABASE_PASSWORD_FILE",
    "HOST_LABEL",
    "RUNTIME_DIR",
    "SERVER",
    "TOKEN",
    "WORKER_FOLDER",
)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_OWN_ENVIRONMENT = "this"
_HOST_NAME = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])\Z")


def _data_dir() -> Path:
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "collage"


class Settings(BaseSettings):
    """Settings of one server; each field has its line in docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore", frozen=True)

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
    max_parallel_uploads: int = Field(default=16, ge=1)
    max_uploads_each: int = Field(default=4, ge=1)
    min_upload_bytes_s: int = Field(default=1000, ge=0)
    upload_time_limit_s: float = Field(default=3600.0, gt=0)
    max_event_streams: int = Field(default=500, ge=1)
    runners: int = Field(default=1, ge=0, le=64)
    server_cores: int = Field(default=0, ge=0)
    scheduler: str | None = None
    scheduler_certificates: Path | None = None
    lease_s: float = Field(default=30.0, ge=1)
    poll_s: float = Field(default=0.5, gt=0, le=10)
    environments: Mapping[str, str] = Field(default_factory=dict)
    wait_for_quiet_s: float = Field(default=30.0, ge=0, le=86400)
    job_time_limit_s: float = Field(default=4 * 3600.0, ge=0)
    keep_jobs_days: float | None = Field(default=None, gt=0, le=36_500)
    keep_results_bytes: int | None = Field(default=None, ge=0)
    webhook_hosts: tuple[str, ...] = ()
    webhook_secret: SecretStr | None = Field(default=None, min_length=16)
    watch_every_s: float | None = Field(default=None, ge=60)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @field_validator("allowed_hosts")
    @classmethod
    def _are_host_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HOST_NAME.match(name):
                raise ValueError(
                    f"{name!r} is no name of a host; write it without scheme, port and path"
                )
        return names

    @field_validator("environments")
    @classmethod
    def _are_interpreters(cls, environments: Mapping[str, str]) -> Mapping[str, str]:
        for name, python in environments.items():
            if not _ENVIRONMENT_NAME.match(name) or name == _OWN_ENVIRONMENT:
                raise ValueError(f"{name!r} cannot be a name; take letters, digits, dots and dashes")
            if not Path(python).is_absolute() or not os.access(python, os.X_OK):
                raise ValueError(
                    f"{python!r} of {name!r} is no program that can be run; write its whole path"
                )
        return environments

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


def read_settings(**given: Any) -> Settings:
    """The settings of the environment; `given` take precedence.

    Raises:
        BadInputError: a value is wrong, or a name is misspelled.
    """
    check_names(os.environ)
    try:
        return Settings(**given)
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = _PREFIX + field[1].upper() if field else "a setting"
        form = 'list, such as ["tuner.example.org"]'
        if field and field[1] == "environments":
            form = 'object, such as {"next": "/opt/next/bin/python"}'
        raise BadInputError(f"{name}: write a JSON {form}") from None
    except ValidationError as error:
        faults = (
            f"{_PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg']}, not {str(fault['input'])!r}"
            for fault in error.errors()
        )
        raise BadInputError("; ".join(faults)) from None


def check_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that looks like a misspelled setting.

    Raises:
        BadInputError: with the setting that is probably meant.
    """
    known = [name.upper() for name in Settings.model_fields] + list(_OTHERS)
    for name in sorted(environment):
        if not name.upper().startswith(_PREFIX) or (short := name[len(_PREFIX) :].upper()) in known:
            continue
        if meant := difflib.get_close_matches(short, known, n=1, cutoff=0.7):
            raise BadInputError(f"{name} is no setting; {_PREFIX}{meant[0]} is probably meant")

"""The Dask cluster that joins tuners with workers on other machines: addresses, TLS, and its members.

Terms: the *scheduler* (`collage scheduler`) knows all *workers* (`collage worker`) and gives them
tasks. A worker *announces* its hardware, its label and its runtimes. Workers with the same hardware and
the same versions are of one *kind*: a cost measured by one holds for all.

Invariant: members trust each other wholly, since Dask runs what they send. So they speak mutual TLS, or
stay on one machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collage.backends.machine.hardware import Gpu, Hardware
from collage.partitioner.errors import BadInputError, CollageError

DEFAULT_PORT = 8786
# Files of a machine's folder of certificates.
CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
SLOT, CAPABILITY, KIND = "slot", "cap:", "kind:"
ANNOUNCEMENT = "collage"
_CONNECT_S = 3
# Tornado raises ValueError where the other side hung up before TLS began.
UNREACHABLE = (OSError, ValueError)


class ClusterError(CollageError):
    """The scheduler cannot be reached."""


@dataclass(frozen=True)
class Announcement:
    """What a worker says of itself."""

    host: str  # name of its machine
    hardware: Hardware  # the kind of machine, its label included
    threads: int
    collage: str  # version of this program
    python: str  # version
    backends: Mapping[str, str]  # version of each runtime that it has, by backend
    lacking: Mapping[str, str]  # why it has not the others, by backend

    @property
    def kind(self) -> str:
        """The same for workers that can replace each other."""
        known = [self.hardware.digest, self.threads, self.collage, self.python, dict(self.backends)]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def resources(self) -> dict[str, float]:
        """What tasks ask for, in Dask's terms: one slot, and each runtime."""
        caps = {f"{CAPABILITY}{backend}": 1.0 for backend in self.backends}
        return {SLOT: 1.0, f"{KIND}{self.kind}": 1.0, **caps}

    def as_data(self) -> dict[str, Any]:
        """As plain data for the scheduler."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Announcement:
        """Read what `as_data` wrote."""
        machine = dict(data["hardware"])
        machine["features"] = tuple(machine["features"])
        machine["gpus"] = tuple(Gpu(**gpu) for gpu in machine["gpus"])
        return cls(**{**data, "hardware": Hardware(**machine)})


@dataclass(frozen=True)
class RemoteWorker:
    """A worker as the scheduler knows it."""

    address: str
    name: str  # that its operator gave it
    busy: bool  # whether it does something now
    announced: Announcement


def own_version() -> str:
    """Version of this program."""
    return version("collage-tuner")


def security(address: str, certificates: Path | None) -> Any:
    """Dask's TLS settings for an address; None where it needs none.

    Args:
        address: of a scheduler, or one to listen on.
        certificates: a folder with `ca.crt`, `tls.crt` and `tls.key`.

    Raises:
        BadInputError: the address is malformed, TLS is missing for other machines, or a file is.
    """
    try:
        parts = urlsplit(address)
        # The port is checked only when it is asked for.
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise BadInputError(f"address {address!r}: {error}; write tls://HOST:{DEFAULT_PORT}") from None
    if scheme not in ("tcp", "tls") or not host:
        raise BadInputError(f"address {address!r}: write tls://HOST:{DEFAULT_PORT}")
    if certificates is None:
        if scheme == "tls":
            raise BadInputError(
                f"{address} needs certificates: name the folder that `collage certs` made for this machine"
            )
        if not _is_loopback(host):
            raise BadInputError(
                f"{address} is open to other machines, and whoever reaches it can run anything here: "
                "make certificates (`collage certs`), name their folder and write tls://"
            )
        return None
    if scheme == "tcp":
        raise BadInputError(f"certificates are given, but {address} does not use them: write tls://")
    files = [certificates / name for name in (CA, CERTIFICATE, KEY)]
    for file in files:
        if not file.is_file():
            raise BadInputError(f"{file} is missing: `collage certs` makes such a folder")
    from distributed.security import Security

    ca, certificate, key = map(str, files)
    named = {
        f"tls_{role}_{what}": path
        for role in ("scheduler", "worker", "client")
        for what, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=ca, **named)


def default_listen(scheduler: str) -> str | None:
    """Where a worker listens: on loopback for a scheduler there; None where other machines call it."""
    parts = urlsplit(scheduler)
    if parts.hostname and _is_loopback(parts.hostname):
        return f"{parts.scheme}://127.0.0.1:0"
    return None


def quieten_dask() -> None:
    """Let Dask log problems only."""
    import distributed  # noqa: F401  (it sets the level when it is first imported)

    logging.getLogger("distributed").setLevel(logging.WARNING)


def check_installed() -> None:
    """Make sure that Dask is there.

    Raises:
        BadInputError: it is not; the message says what to install.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise BadInputError(
            f"workers on other machines need Dask ({error}): pip install 'collage-tuner[workers]'"
        ) from None


def find_workers(address: str, certificates: Path | None) -> list[RemoteWorker]:
    """The workers that a scheduler knows, in order of their names.

    Raises:
        ClusterError: the scheduler cannot be reached.
    """
    check_installed()
    secured = security(address, certificates)
    # Callers may have a running loop, which Dask must not use.
    return asyncio.run(_find_workers(address, secured))


async def _find_workers(address: str, secured: Any) -> list[RemoteWorker]:
    from distributed.core import rpc

    arguments = secured.get_connection_args("client") if secured is not None else {}
    try:
        async with rpc(address, timeout=_CONNECT_S, connection_args=arguments) as scheduler:
            known = await scheduler.identity(n_workers=-1)
    except UNREACHABLE as error:
        raise ClusterError(unreachable(address, error)) from None
    return members(known)


def members(identity: Mapping[str, Any]) -> list[RemoteWorker]:
    """The workers in a scheduler's answer, ours only."""
    found = []
    for address, worker in identity["workers"].items():
        if ANNOUNCEMENT in worker:
            announced = Announcement.from_data(worker[ANNOUNCEMENT])
            busy = bool(worker["metrics"].get("executing") or worker["metrics"].get("ready"))
            found.append(RemoteWorker(address, str(worker["name"]), busy, announced))
    return sorted(found, key=lambda worker: (worker.name, worker.address))


def unreachable(address: str, error: BaseException) -> str:
    """The message for a scheduler that cannot be reached."""
    return (
        f"the scheduler at {address} cannot be reached ({str(error) or type(error).__name__}): "
        "is `collage scheduler` running, and are the certificates of the same authority?"
    )


async def serve_scheduler(address: str, certificates: Path | None, patience_s: float) -> None:
    """Run a scheduler until it is cancelled.

    `patience_s`: a worker silent for so long counts as dead, and a task without a worker waits so long
    for one.
    """
    secured = security(address, certificates)
    quieten_dask()
    import dask
    from distributed import Scheduler

    class Quiet(Scheduler):  # type: ignore[misc]
        """A scheduler that opens no other port: Dask's own pages need no certificate."""

        def start_http_server(self, *args: Any, **kwargs: Any) -> None:
            pass

    settings = {
        # A task whose worker died goes back to its tuner.
        "distributed.scheduler.allowed-failures": 0,
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.worker-ttl": f"{patience_s}s",
        "distributed.scheduler.no-workers-timeout": f"{patience_s}s",
        # By default a call waits half a minute for a worker that has died.
        "distributed.comm.timeouts.connect": "5s",
    }
    with dask.config.set(settings):
        async with Quiet(host=address, security=secured, dashboard=False) as scheduler:
            print(f"collage scheduler listens on {scheduler.address}", file=sys.stderr, flush=True)
            await scheduler.finished()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

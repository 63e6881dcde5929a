"""Machines that tests make on this one: processes with homes, packages and labels of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from collage.cluster.certificates import make_certificates
from collage.cluster.connection import RemoteWorker, find_workers

ROOT = Path(__file__).resolve().parents[1]
# Slow to load, and no test here needs them.
_HEAVY = ("torch", "MNN", "ncnn")
PATIENCE_S = 5
_MAIN = "from collage.cli.app import main; main()"


class Host:
    """A machine: what runs on it sees its own home and its own packages.

    Args:
        folder: for its home.
        label: of its kind.
        without: packages that are not installed on it.
        more: folders with further packages.
    """

    def __init__(
        self, folder: Path, label: str = "", without: Sequence[str] = (), more: Sequence[Path] = ()
    ) -> None:
        self.folder = folder
        self._packages = folder / "packages"
        self._packages.mkdir(parents=True)
        left_out = tuple(name.lower() for name in (*_HEAVY, *without))
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            # The folder of a package, and what names its distribution: `openvino-2026.4.dist-info`.
            if entry.name.lower().split("-")[0] not in left_out and entry.suffix != ".pth":
                (self._packages / entry.name).symlink_to(entry)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            "PYTHONPATH": ":".join(map(str, (self._packages, *more, ROOT))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLLAGE_HOST_LABEL": label,
            # Else the device's lock would be shared by what are to be two machines.
            "COLLAGE_RUNTIME_DIR": str(folder / "run"),
        }
        self._started: list[psutil.Popen] = []

    def start(self, *command: str) -> psutil.Popen:
        """Run a command of `collage` in the background."""
        with (self.folder / "log.txt").open("ab") as log:
            # -S: no packages but this machine's own.
            process = psutil.Popen(
                [sys.executable, "-S", "-c", _MAIN, *command],
                env=self._environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `collage` to its end."""
        return subprocess.run(
            [sys.executable, "-S", "-c", _MAIN, *command],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    @property
    def log(self) -> str:
        """What its background commands said."""
        return (self.folder / "log.txt").read_text(encoding="utf-8")

    def close(self) -> None:
        """End what it runs, also what is suspended."""
        for process in self._started:
            if process.is_running():
                process.kill()
            process.wait()


class Cluster:
    """A scheduler with its certificates, and hosts that work for it.

    Args:
        folder: for everything.
        names: of the hosts that may join; each has a certificate.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.certificates = folder / "certificates"
        make_certificates(self.certificates, ["scheduler", "tuner", *names])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"tls://127.0.0.1:{probe.getsockname()[1]}"
        self.tuner = self.certificates / "tuner"
        self._hosts: list[Host] = []
        self._office = self.host("scheduler")
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """Start it, again where it was killed."""
        own = str(self.certificates / "scheduler")
        self.scheduler = self._office.start(
            *("scheduler", "--listen", self.address, "--certificates", own),
            *("--patience", str(PATIENCE_S)),
        )

    def host(
        self, name: str, label: str = "", without: Sequence[str] = (), more: Sequence[Path] = ()
    ) -> Host:
        """A machine that does nothing yet."""
        made = Host(self.folder / f"{name}-home", label, without, more)
        self._hosts.append(made)
        return made

    def work(self, host: Host, name: str) -> psutil.Popen:
        """Start a worker on a machine."""
        own = str(self.certificates / name)
        return host.start(
            *("worker", "--scheduler", self.address, "--certificates", own),
            *("--name", name, "--folder", str(host.folder / name)),
        )

    def workers(self) -> list[RemoteWorker]:
        """The workers that have joined."""
        return find_workers(self.address, self.tuner)

    def until(self, holds: Callable[[list[RemoteWorker]], bool], within_s: float = 60.0) -> None:
        """Wait until the workers that have joined are as they should be."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                if holds(self.workers()):
                    return
            except Exception as error:
                if time.monotonic() > deadline:
                    raise AssertionError(self.logs()) from error
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        """What everybody said."""
        return "\n".join(f"== {host.folder.name}\n{host.log}" for host in self._hosts)

    def close(self) -> None:
        """End all of it."""
        for host in self._hosts:
            host.close()

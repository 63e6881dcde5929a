"""One job in a process of its own, forked by `job_template` with all libraries loaded.

The server's process never parses a model, solves a program or loads a runtime. All that happens here and, for
what users sent, in sandboxed children of this process. So a crash here is one failed job, a job can always be
cancelled, and requests are answered while a search runs.

Protocol: the process starts its helper; then one JSON line on stdin says what to do (`Request`); stdin then stays open, and
its end means that the server died: so does the job. Its messages are JSON lines: `{"loaded": …}` when the helper is
there, `{"event": …}` as they happen, then one `{"result": …}` or `{"error": …}`. SIGTERM asks to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.backends.sandbox.fork_server import fork_server
from collage.events import Listener

if TYPE_CHECKING:
    from collage.runner import Runner

# How long the tuner may take to stop by itself when asked to; then the process ends regardless.
STOP_S = 1.0
WAITING_NAME, JOB_NAME = "collage-waits", "collage-job"
"""The process's name, and that once it has a job."""


@dataclass(frozen=True)
class Request:
    """What the process is to do; all paths are local. With a scheduler, its workers measure."""

    source: str
    targets: list[str]
    options: dict[str, Any]
    database_url: str
    work_dir: str
    inputs: str | None = None
    scheduler: str | None = None
    certificates: str | None = None
    kind: str = "tune"
    environments: dict[str, str] = field(default_factory=dict)  # interpreters by name
    history: list[dict[str, Any]] = field(default_factory=list)  # of a watch, what it compares with


def main(messages: int) -> None:
    """Run the job described on stdin; what happens goes to a descriptor."""
    out = os.fdopen(messages, "w", buffering=1)
    lock = threading.Lock()

    def say(kind: str, data: object) -> None:
        with lock:
            out.write(json.dumps({kind: data}, default=str) + "\n")

    _name(WAITING_NAME)
    fork_server()
    say("loaded", {"modules": len(sys.modules)})
    line = sys.stdin.readline()
    if not line:
        return  # the server ended before it had a job for us
    _name(JOB_NAME)
    request = Request(**json.loads(line))
    cancel = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: cancel.set())
    threading.Thread(target=_end_with_server, name="server-watch", daemon=True).start()
    threading.Thread(
        target=_end_when_cancelled, args=(cancel,), name="cancel-watch", daemon=True
    ).start()
    _carry_out(request, cancel, say)


def _name(name: str) -> None:
    """Let `ps` tell a job from a process that waits for one."""
    with contextlib.suppress(OSError):  # not on this platform
        Path("/proc/self/comm").write_text(name, encoding="utf-8")


def _carry_out(request: Request, cancel: threading.Event, say: Callable[[str, object], None]) -> None:
    from collage.partitioner.errors import CancelledError, CollageError

    do = {"tune": _tune, "diagnose": _diagnose, "watch": _watch}[request.kind]
    try:
        result = do(request, cancel, lambda event: say("event", event.as_dict()))
    except CancelledError:
        say("error", {"kind": "cancelled", "reason": "cancelled"})
    except CollageError as error:
        say("error", {"kind": _kind(error), "reason": str(error)})
    except Exception as error:
        # A mistake of ours must end as a failed job with a reason, not as silence.
        import traceback

        say("error", {"kind": "internal", "reason": f"{type(error).__name__}: {error}"})
        with contextlib.suppress(OSError):  # the disk is full: then nothing more can be told
            traceback.print_exc()
    else:
        say("result", result)


def _tune(request: Request, cancel: threading.Event, listener: Listener) -> dict[str, Any]:
    from collage.api import tune_into
    from collage.options import TuneOptions

    result = tune_into(
        Path(request.work_dir),
        Path(request.source),
        request.targets,
        TuneOptions.from_json(request.options),
        database=request.database_url,
        inputs=Path(request.inputs) if request.inputs else None,
        scheduler=request.scheduler,
        certificates=Path(request.certificates) if request.certificates else None,
        on_event=listener,
        cancel=cancel,
    )
    return {"artifact": str(result.artifact_path), "report": result.report, "plan": result.plan}


def _diagnose(request: Request, cancel: threading.Event, listener: Listener) -> dict[str, Any]:
    from collage.diagnosis.diagnose import diagnose
    from collage.diagnosis.options import DiagnoseOptions
    from collage.diagnosis.output import write_bundle

    (target,) = request.targets
    found, bundle = Path(request.work_dir) / "found", Path(request.work_dir) / "found.zip"
    asked = DiagnoseOptions.from_json(request.options).request(
        Path(request.source),
        target,
        found,
        Path(request.inputs) if request.inputs else None,
        request.environments,
    )
    with _runner(request, cancel) as runner:
        report = diagnose(asked, runner, listener, cancel)
    names = {path: name for name, path in request.environments.items()}
    for side in report["speed"].get("sides", ()):
        side["python"] = names.get(side["python"], side["python"])
    return {"artifact": str(bundle), "report": write_bundle(report, found, bundle), "plan": None}


def _watch(request: Request, cancel: threading.Event, listener: Listener) -> dict[str, Any]:
    from collage.partitioner.target import Target
    from collage.watch.run import run_watch
    from collage.watch.watch_list import WatchList

    artifact = Path(request.work_dir) / "artifact.onnx"
    os.link(request.source, artifact)
    watching = WatchList(Path(request.work_dir) / "watched")
    watched = watching.add(artifact)
    for record in request.history:
        watched.note(record)
    # Workers are on other machines, which have none of these.
    pythons = [Path(python) for python in request.environments.values() if request.scheduler is None]
    with _runner(request, cancel) as runner:
        if request.scheduler is not None:
            runner.check([Target.parse(target) for target in request.targets])
        results = run_watch(
            watching, pythons, again=True, runner=runner, listener=listener, cancel=cancel
        )
    names = {path: name for name, path in request.environments.items()}
    for result in results:
        result["environment"] = names.get(result["environment"], result["environment"])
    measured = watched.history[len(request.history) :]
    return {"artifact": None, "report": {"results": results, "measured": measured}, "plan": None}


def _runner(request: Request, cancel: threading.Event) -> AbstractContextManager[Runner]:
    """This machine, or the scheduler's workers."""
    from collage.cluster.dask_runner import runner_for

    certificates = Path(request.certificates) if request.certificates else None
    return runner_for(request.scheduler, certificates, wait_s=0.0, cancel=cancel)


def _kind(error: Exception) -> str:
    from collage.partitioner.errors import CollageError
    from collage.service.http.problems import kind_of

    assert isinstance(error, CollageError)
    return kind_of(error)[1]


def _end_with_server() -> None:
    sys.stdin.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _end_when_cancelled(cancel: threading.Event) -> None:
    cancel.wait()
    threading.Event().wait(STOP_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def request_line(request: Request) -> bytes:
    """The request as the process reads it."""
    return json.dumps(asdict(request)).encode() + b"\n"

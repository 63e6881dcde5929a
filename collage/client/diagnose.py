"""A diagnosis on a server, with the same folder in the caller's hands as a diagnosis here."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collage.client.client import Client
from collage.client.follow import follow
from collage.events import Listener, ignore


def diagnose_remotely(
    client: Client,
    model: Path,
    target: str,
    *,
    output: Path,
    make_output: Callable[[Path], None],
    inputs: Path | None = None,
    options: Mapping[str, Any] | None = None,
    on_event: Listener = ignore,
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Post a model, follow the job, and unpack what it found.

    Args:
        client: a connection to the server.
        model: an ONNX file, or a zip with external data.
        target: the target to look at.
        output: folder for what is found.
        make_output: makes the folder, and removes what an earlier diagnosis wrote there.
        inputs: sample inputs as .npz.
        options: of the diagnosis (docs/diagnose.md).
        on_event: is told about every step.
        cancel: cancels the job on the server when set.

    Returns:
        The report, whose paths lie in `output`.

    Raises:
        JobFailedError: the job failed; its reason is the message.
        CancelledError: the job was cancelled, here or by somebody else.
    """
    created = client.create_diagnosis(model, target, options, inputs=inputs)
    job = follow(client, created.id, on_event, cancel)
    make_output(output)
    bundle = client.artifact(job.id, output / f"{job.id}.zip")
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(output)  # names that lead out of the folder lose what does so
    bundle.unlink()
    return _placed(client.report(job.id), output)


def _placed(report: dict[str, Any], output: Path) -> dict[str, Any]:
    """The report with paths in the folder, as a diagnosis here writes them."""
    for entry in (*report["faults"]["culprits"], *(report["speed"].get("regions") or ())):
        if made := entry.get("reproducer"):
            made["folder"] = str(output / made["folder"])
    depth = report["faults"]["error_by_depth"]
    if depth is not None and depth["picture"] is not None:
        depth["picture"] = str(output / depth["picture"])
    return report

"""Tuning on a server, with the same result in the caller's hands as tuning here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage.artifact.artifact import Artifact
from collage.client.client import Client
from collage.client.follow import follow
from collage.events import Listener, ignore


def tune_remotely(
    client: Client,
    model: Path,
    targets: Sequence[str],
    *,
    output: Path,
    inputs: Path | None = None,
    options: Mapping[str, Any] | None = None,
    on_event: Listener = ignore,
    cancel: threading.Event | None = None,
) -> Artifact:
    """Post a model, follow the job, and download the artifact.

    Args:
        client: a connection to the server.
        model: an ONNX file, or a zip with external data.
        targets: texts of targets; none where those of the plan in `options` are meant.
        output: where the artifact goes.
        inputs: sample inputs as .npz.
        options: fields of `collage.options.TuneOptions`.
        on_event: is told about every step.
        cancel: cancels the job on the server when set.

    Raises:
        JobFailedError: the job failed; its reason is the message.
        CancelledError: the job was cancelled, here or by somebody else.
    """
    created = client.create_job(model, targets, options, inputs=inputs)
    job = follow(client, created.id, on_event, cancel)
    path = client.artifact(job.id, output)
    return Artifact(path, client.report(job.id), client.plan(job.id))

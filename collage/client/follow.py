"""Waits for a job on a server."""

from __future__ import annotations

import threading

from collage.client.answers import RemoteJob
from collage.client.client import Client
from collage.events import Listener
from collage.partitioner.errors import CancelledError, CollageError


class JobFailedError(CollageError):
    """The server ended the job without an artifact; the message is its reason."""


def follow(
    client: Client, job_id: str, on_event: Listener, cancel: threading.Event | None
) -> RemoteJob:
    """The job once it is done.

    Args:
        client: a connection to the server.
        job_id: the job.
        on_event: is told about every step.
        cancel: cancels the job on the server when set.

    Raises:
        JobFailedError: the job failed; its reason is the message.
        CancelledError: the job was cancelled, here or by somebody else.
    """
    for event in client.events(job_id):
        on_event(event)
        if cancel is not None and cancel.is_set():
            client.cancel(job_id)
            raise CancelledError(f"job {job_id} was cancelled")
    job = client.job(job_id)
    if job.state == "cancelled":
        raise CancelledError(f"job {job_id} was cancelled")
    if job.state != "done":
        raise JobFailedError(f"job {job_id} failed: {job.reason}")
    return job

"""Webhooks: a request to an address of the job's owner when the job ends.

Only hosts that the server's settings name are called, redirects are not followed, and each request is
signed. A thread of its own sends them, so a slow receiver keeps no runner.

Source of headers and signature: Standard Webhooks 1.0.0 (standardwebhooks.com).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from urllib.parse import urlsplit

import httpx
import structlog

from collage.cost_db.jobs.job import Job
from collage.cost_db.jobs.webhooks import WebhookStore
from collage.service.http.problems import ProblemError, invalid
from collage.service.settings import Settings

# Seconds until each further try; after the last one the webhook counts as failed.
RETRY_S = (10.0, 60.0, 600.0, 3600.0)
_LEASE_S = 60.0
_TIMEOUT_S = 10.0
_URL_CHARACTERS = 2000

_log = structlog.get_logger("collage.webhooks")


def check_webhook(settings: Settings, url: str | None) -> str | None:
    """The address itself, where it may be called.

    Raises:
        ProblemError: 422, with what is wrong with it.
    """
    if url is not None and (problem := _problem(settings, url)):
        raise _refused(problem)
    return url


def _refused(problem: str) -> ProblemError:
    return invalid([("webhook", problem)])


def _problem(settings: Settings, url: str) -> str | None:
    """Why an address may not be called, or None."""
    if not settings.webhook_hosts:
        return "this server calls no webhooks; COLLAGE_WEBHOOK_HOSTS would name the hosts it may call"
    try:
        parts = urlsplit(url)
        address, port = parts.hostname, parts.port
    except ValueError:
        return "it is no URL"
    if len(url) > _URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        return f"it is longer than {_URL_CHARACTERS} characters, or has some that a URL has not"
    if parts.scheme not in ("http", "https") or not address:
        return "write https://HOST/PATH"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "user, password and fragment are not taken; the signature says who calls"
    allowed = {name.lower() for name in settings.webhook_hosts}
    if address not in allowed and f"{address}:{port}" not in allowed:
        return f"host {address!r} is not among COLLAGE_WEBHOOK_HOSTS of this server"
    return None


def shown_url(url: str) -> str:
    """An address without its query, which may hold a secret."""
    return url.split("?", 1)[0]


def signed(secret: str, job_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a request, by which the receiver knows that it comes from this server."""
    message = f"{job_id}.{at_s}.".encode() + body
    digest = hmac.new(secret.encode(), message, hashlib.sha256).digest()
    return {
        "webhook-id": job_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        "content-type": "application/json",
        "user-agent": "collage",
    }


def message_of(job: Job) -> bytes:
    """What the receiver gets: what the job is and how it ended; the API has the rest."""
    summary = (job.progress or {}).get("summary") if job.state == "done" else None
    content = {
        "type": f"job.{job.state}",
        "job": job.id,
        "state": job.state,
        "name": job.name,
        "labels": list(job.labels),
        "reason": job.reason,
        "summary": summary,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
        "url": f"/v1/jobs/{job.id}",
    }
    return json.dumps(content).encode()


class WebhookSender:
    """The thread that calls due webhooks; without allowed hosts there is none."""

    def __init__(self, settings: Settings, store: WebhookStore) -> None:
        self._settings = settings
        self._store = store
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        if self._settings.webhook_hosts:
            self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; what is due stays due."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=_TIMEOUT_S + 1)

    def _run(self) -> None:
        with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
            while not self._stopping.is_set():
                try:
                    job = self._store.take_due(_LEASE_S)
                    if job is not None:
                        self._call(client, job)
                        continue
                except Exception as error:  # a database away for long must not end the thread
                    _log.error("webhooks failed; they go on", error=type(error).__name__)
                self._stopping.wait(max(self._settings.poll_s, 0.05))

    def _call(self, client: httpx.Client, job: Job) -> None:
        assert job.webhook_url is not None and self._settings.webhook_secret is not None
        problem = _problem(self._settings, job.webhook_url)
        again_in_s = None
        if problem is None:
            problem = self._post(client, job, job.webhook_url)
            if problem is not None and job.webhook_tries <= len(RETRY_S):
                again_in_s = RETRY_S[job.webhook_tries - 1]
        if problem is not None:
            _log.warning("webhook failed", job=job.id, tries=job.webhook_tries, problem=problem)
        self._store.settle(job.id, delivered=problem is None, again_in_s=again_in_s)

    def _post(self, client: httpx.Client, job: Job, url: str) -> str | None:
        """Why it was not taken, or None."""
        assert self._settings.webhook_secret is not None
        body = message_of(job)
        secret = self._settings.webhook_secret.get_secret_value()
        headers = signed(secret, job.id, int(time.time()), body)
        try:
            # The answer is not read: it may be endless.
            with client.stream("POST", url, content=body, headers=headers) as answer:
                return None if answer.is_success else f"status {answer.status_code}"
        except httpx.HTTPError as error:
            return type(error).__name__

"""What a tuning server answers: jobs, problems, and streams of events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from collage.partitioner.errors import BadInputError, CollageError

FINISHED = ("done", "failed", "cancelled")


class ServerError(CollageError):
    """The server refused or failed, or cannot be reached.

    Args:
        kind: the last part of the problem's `type`, such as `quota-exceeded`; `unreachable` for none.
        status: the HTTP status; 0 without answer.
        detail: one sentence.
    """

    def __init__(self, kind: str, status: int, detail: str) -> None:
        super().__init__(f"server: {detail}")
        self.kind = kind
        self.status = status
        self.detail = detail


class RefusedError(ServerError, BadInputError):
    """The request cannot be used; the detail says what to change."""


@dataclass(frozen=True)
class RemoteJob:
    """A job on the server.

    Args:
        id: 32 hexadecimal digits.
        state: `queued`, `running`, `done`, `failed` or `cancelled`.
        position: place in the queue from 1, None when it does not wait.
        reason: why it failed or was cancelled.
        url: where it is.
        page: its page for people.
        data: everything the server says about it.
    """

    id: str
    state: str
    position: int | None
    reason: str | None
    url: str
    page: str
    data: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        """True when nothing more will happen."""
        return self.state in FINISHED


def checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        problem = answer.json()
        kind = str(problem["type"]).rsplit(":", 1)[-1]
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        kind, detail = (
            "unknown",
            f"status {answer.status_code} without a reason; is this a Collage server?",
        )
    error = RefusedError if answer.status_code in (404, 413, 415, 422) else ServerError
    raise error(kind, answer.status_code, detail)


def sse(answer: httpx.Response) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(number, kind, data) of each event of a stream."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif not line and "data" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}

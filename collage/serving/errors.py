"""What the server answers when a request cannot be served."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is refused: an HTTP status, and a message that says what to do."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


def bad(message: str) -> RequestError:
    """The error of a request that is wrong in itself."""
    return RequestError(400, message)

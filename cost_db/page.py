"""Keyset pages: a page follows a cursor in a total order, so nothing is skipped or repeated.

A cursor is opaque to the caller: the sort key of the last item, as URL-safe text.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Generic, TypeVar

from collage.cost_db.plain_text import plain
from collage.partitioner.errors import BadInputError

T = TypeVar("T")
Key = str | int

MAX_LIMIT = 1_000


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items in order, and the cursor after which the next page starts (None: no more)."""

    items: tuple[T, ...]
    next: str | None


def cursor(*key: Key) -> str:
    """The cursor of an item with this sort key."""
    return (
        base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")
    )


def read_cursor(text: str, *kinds: type[Key]) -> tuple[Key, ...]:
    """The sort key in a cursor.

    Raises:
        BadInputError: the text is not a cursor of these kinds.
    """
    try:
        key = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        key = None
    if (
        not isinstance(key, list)
        or [type(part) for part in key] != list(kinds)
        or any(isinstance(part, int) and not 0 <= part < 2**63 for part in key)
    ):
        raise BadInputError(
            f"cursor {text!r} is not one that this server gave; start from the first page"
        )
    return tuple(plain("cursor", part) if isinstance(part, str) else part for part in key)


def check_limit(limit: int) -> int:
    """The limit itself.

    Raises:
        BadInputError: it is not between 1 and `MAX_LIMIT`.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise BadInputError(f"limit {limit} is not between 1 and {MAX_LIMIT}")
    return limit

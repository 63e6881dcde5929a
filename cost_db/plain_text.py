"""Text that every database takes: no NUL (PostgreSQL refuses it), no surrogates, limited in length."""

from __future__ import annotations

from collage.partitioner.errors import BadInputError

LIMIT = 10_000


def plain(name: str, value: str, limit: int = LIMIT) -> str:
    """The value itself; `name` is for the message.

    Raises:
        BadInputError: it is longer than `limit` or has characters that no database keeps.
    """
    if len(value) > limit:
        raise BadInputError(f"{name} is longer than {limit} characters")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInputError(f"{name} has a character that is not allowed (NUL or half of a pair)")
    return value

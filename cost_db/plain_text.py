"""Text that every database takes: no NUL (PostgreSQL refuses it), no half characters, not endless."""

from __future__ import annotations

from collage.partitioner.errors import BadInputError

LIMIT = 10_000


def plain(name: str, value: str, limit: int = LIMIT) -> str:
    """The value itself.

    Args:
        name: what the value is, for the message.
        value: text from outside.
        limit: most characters allowed.

    Raises:
        BadInputError: it is too long or has characters that no database keeps.
    """
    if len(value) > limit:
        raise BadInputError(f"{name} is longer than {limit} characters")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInputError(f"{name} has a character that is not allowed (NUL or half of a pair)")
    return value

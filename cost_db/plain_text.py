"""Text and JSON that every database, and everything that reads it again, takes.

Text has no NUL (PostgreSQL refuses it) and no surrogates, and is limited in length. JSON is limited in
depth (serializers recurse) and in size, and has finite numbers alone.
"""

from __future__ import annotations

import json
import math
from typing import Any

from collage.partitioner.errors import BadInputError

LIMIT = 10_000
JSON_BYTES = 1 << 20
JSON_DEPTH = 32
_JSON_DIGITS = 40


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


def plain_json(name: str, value: Any, limit_bytes: int = JSON_BYTES) -> str:
    """The text of a value as JSON; equal values give equal text.

    Args:
        name: for the message.
        value: of lists, tuples, mappings with texts as keys, texts, numbers, booleans and None.
        limit_bytes: most bytes of the text.

    Raises:
        BadInputError: it is nested too deep, too long, or not JSON; the message names the field.
    """
    _check(name, value)
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInputError(f"{name} cannot be kept as JSON: {error}") from None
    if len(text) > limit_bytes:
        raise BadInputError(f"{name} is longer than {limit_bytes} bytes as JSON")
    return text


def read_json(name: str, text: str | bytes, limit_bytes: int = JSON_BYTES) -> Any:
    """The value of a JSON text from outside.

    Raises:
        BadInputError: it is no JSON, nested too deep, too long, or has what no database keeps.
    """
    if len(text) > limit_bytes:
        raise BadInputError(f"{name} is longer than {limit_bytes} bytes")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:
        raise BadInputError(f"{name} is not JSON: {error}") from None
    _check(name, value)
    return value


def _check(name: str, value: Any) -> None:
    """Walk without recursion: what is looked for is a value too deep to recurse into."""
    waiting = [(name, value, 0)]
    while waiting:
        where, found, depth = waiting.pop()
        if isinstance(found, str):
            plain(where, found, JSON_BYTES)
        elif isinstance(found, float) and not math.isfinite(found):
            raise BadInputError(f"{where} is {found}, and JSON knows finite numbers alone")
        elif isinstance(found, int) and abs(found) >= 10**_JSON_DIGITS:
            raise BadInputError(f"{where} has more than {_JSON_DIGITS} digits")
        elif isinstance(found, dict | list | tuple):
            if depth == JSON_DEPTH:
                raise _too_deep(name)
            items = found.items() if isinstance(found, dict) else enumerate(found)
            for key, item in items:
                if isinstance(key, str):
                    plain(f"a key of {where}", key, LIMIT)
                waiting.append((f"{where}.{str(key)[:100]}"[:300], item, depth + 1))


def _too_deep(name: str) -> BadInputError:
    return BadInputError(f"{name} is nested deeper than {JSON_DEPTH} levels; send less deep JSON")


def _no_constant(name: str) -> float:
    raise ValueError(f"it has {name}, which is no number of JSON")

"""Log lines without secrets: fields by their name, everything else by how secrets look.

`redact` sees each line as it is written, so no way of logging passes by it.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "[redacted]"

_SECRET_FIELD = re.compile(r"authorization|cookie|token|secret|passw|credential|api[_-]?key", re.I)
_PATTERNS = (
    # A token's id may be seen, for it names the token in `collage token list`.
    (re.compile(r"\b(collage_[0-9A-Za-z]{16}_)[\w-]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=-]{6,}", re.I), rf"\1\2{HIDDEN}"),
    # Headers, as text and as Python and JSON show pairs of them.
    (
        re.compile(
            r"""\b(authorization|cookie|x-api-key)(\\?["']?\s*[:=,]\s*(?:b?\\?["'])?)[^"'\\\r\n]+""",
            re.I,
        ),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(
            r"""\b(password|passwd|secret|token|api_?key)(\\?["']?\s*[:=]\s*(?:b?\\?["'])?)[^\s"'&,;\\]+""",
            re.I,
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(://[^\s:/@]*:)[^\s/@]+(?=@)"), rf"\1{HIDDEN}"),
)


def redact(text: str) -> str:
    """The text with everything that looks like a secret replaced."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def hide_fields(value: Any, depth: int = 6) -> Any:
    """The value with each field replaced whose name says that it holds a secret; `depth` levels of it."""
    if not isinstance(value, (dict, list, tuple)):
        return value
    if not depth:
        return "…"
    if isinstance(value, dict):
        return {
            name: HIDDEN if _SECRET_FIELD.search(str(name)) else hide_fields(item, depth - 1)
            for name, item in value.items()
        }
    if len(value) == 2 and isinstance(value[0], (str, bytes)) and _SECRET_FIELD.search(str(value[0])):
        return [value[0], HIDDEN]  # a header as a pair
    return [hide_fields(item, depth - 1) for item in value]

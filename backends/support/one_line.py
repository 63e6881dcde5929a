"""What a program said, in one line that is short enough to be a reason."""

from __future__ import annotations

_LONGEST = 600  # characters


def one_line(text: str) -> str:
    """The text with its white space put together; of a long one the middle is left out.

    Runtimes name the cause first, or last after all that was called.
    """
    line = " ".join(text.split())
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}"

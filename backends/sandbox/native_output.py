"""Keeps native libraries from printing.

Some runtimes print while they are imported or convert a model, which would spoil a program's output.
Both standard streams are closed to native code meanwhile; they belong to the process, so one thread at
a time is quiet.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_LONGEST = 600  # characters of a reason


@contextmanager
def quiet() -> Iterator[None]:
    """Send what native code writes to standard output and error nowhere."""
    with _LOCK:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        kept = [(number, os.dup(number)) for number in (1, 2)]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            for number, _ in kept:
                os.dup2(nowhere, number)
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
            os.close(nowhere)


def one_line(text: str) -> str:
    """The text in one line; of a long one the middle is left out, since runtimes name the cause first or last."""
    line = " ".join(text.split())
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}"

"""Keep native libraries from printing.

Some runtimes print from native code while they are imported or convert a model. Programs that write
JSON to standard output must not be spoilt by that, so both standard streams are closed to native
code meanwhile. The streams belong to the process: one thread at a time is quiet.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()


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

"""Requests per minute of each token: a bucket that fills steadily and holds one minute's worth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Rates:
    """Buckets of one server process; with several servers each allows the whole rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, owner: str, per_minute: int) -> float:
        """Use one request of the owner's bucket; returns 0, or the seconds until there is one."""
        with self._lock:
            now = self._clock()
            level, at = self._buckets.get(owner, (float(per_minute), now))
            level = min(float(per_minute), level + (now - at) * per_minute / 60)
            if level < 1:
                self._buckets[owner] = (level, now)
                return (1 - level) * 60 / per_minute if per_minute else 60.0
            self._buckets[owner] = (level - 1, now)
            return 0.0

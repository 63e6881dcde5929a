"""How many uploads run at one time: of everybody, and of each caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from collage.service.http.problems import ProblemError

_LATER = {"Retry-After": "5"}


class UploadSlots:
    """Places for uploads. Lives in the event loop's thread.

    Args:
        all_callers: most uploads at one time.
        each: most of one caller at one time.
    """

    def __init__(self, all_callers: int, each: int) -> None:
        self._all = all_callers
        self._each = each
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken_by(self, caller: str) -> Iterator[None]:
        """A place while the block runs.

        Raises:
            ProblemError: the caller's places (429), or all (503), are taken.
        """
        if self._taken[caller] >= self._each:
            detail = f"{self._each} uploads of yours are running; wait until one has ended"
            raise ProblemError(429, "too-many-uploads", detail, _LATER)
        if self._taken.total() >= self._all:
            raise ProblemError(503, "busy", "too many uploads at once; try again", _LATER)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

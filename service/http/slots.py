"""How many things of a kind run at one time, uploads or streams: of everybody, and of each caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from collage.service.http.problems import ProblemError

_LATER = {"Retry-After": "5"}


class Slots:
    """Places for things of one kind. Lives in the event loop's thread.

    Args:
        kind: what they are, in the plural.
        all_callers: most at one time.
        each: most of one caller at one time.
    """

    def __init__(self, kind: str, all_callers: int, each: int) -> None:
        self._kind = kind
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
            detail = f"{self._each} {self._kind} of yours are running; wait until one has ended"
            raise ProblemError(429, f"too-many-{self._kind}", detail, _LATER)
        if self._taken.total() >= self._all:
            raise ProblemError(503, "busy", f"too many {self._kind} at once; try again", _LATER)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

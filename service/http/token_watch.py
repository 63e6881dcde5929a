"""Whether tokens are still good, asked again and again by what runs for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

EVERY_S = 2.0
_MOST_KNOWN = 1000


class TokenWatch:
    """Answers for many streams with one look into the database for each token and interval.

    Lives in the event loop's thread.

    Args:
        is_valid: whether the token of this id is good; called in threads.
        needed: False where nobody needs a token.
        every_s: for how long an answer holds.
    """

    def __init__(self, is_valid: Callable[[str], bool], needed: bool, every_s: float = EVERY_S) -> None:
        self._is_valid = is_valid
        self._needed = needed
        self._every_s = every_s
        self._known: dict[str, tuple[float, asyncio.Task[bool]]] = {}

    async def allows(self, token_id: str) -> bool:
        """Whether the token is good; the answer may be `every_s` old."""
        if not self._needed:
            return True
        asked_at, answer = self._known.get(token_id, (0.0, None))
        if answer is None or time.monotonic() - asked_at > self._every_s:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            answer = asyncio.create_task(asyncio.to_thread(self._is_valid, token_id))
            self._known[token_id] = (time.monotonic(), answer)
        # Shielded: the listener that asked first may leave while others wait for the answer.
        return await asyncio.shield(answer)

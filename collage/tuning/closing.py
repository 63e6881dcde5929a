"""What follows the choice of plans: proofs, which are always made, and steps that a time limit may leave out.

Invariant: time for the proofs is set apart, and no step that may be left out takes of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.events import Event
from collage.tuning.run import Run

# A step takes at most such a share of the time that is left, so that those after it have some. With less than so many
# seconds none begins, since a process takes as long to start.
_SHARE, _LEAST_S = 0.5, 2.0


class Closing:
    """The time that is left once plans are chosen, and what it left out.

    Args:
        run: what the stages run with.
        reserved_s: seconds that cannot be left out take.
    """

    def __init__(self, run: Run, reserved_s: float = 0.0) -> None:
        self.run = run
        self.reserved_s = reserved_s
        self._left_out: dict[str, None] = {}

    def attempt(self, what: str, function: Callable[..., Any], *args: Any, needed: bool = False) -> Any:
        """What a function computes in a child; None where there is no time for it, which `warnings` tells.

        Args:
            what: is computed, as the user knows it.
            function: of an importable module.
            needed: it is computed however late it is.

        Raises:
            ChildFailed: it fails for another reason.
            CancelledError: the run was cancelled.
        """
        usual_s = ChildLimits().timeout_s
        timeout_s = usual_s if needed else min(usual_s, _SHARE * self._left_s)
        if timeout_s < _LEAST_S:
            self._leave_out(what)
            return None
        try:
            return self.run.runner.run(
                function, *args, limits=ChildLimits(timeout_s=timeout_s), cancel=self.run.cancel
            )
        except ChildFailed as failure:
            if failure.kind != "hang" or timeout_s == usual_s:
                raise
            self._leave_out(what)
            return None

    def reserve(self, seconds: float, what: str) -> bool:
        """Set seconds apart for a proof of something that may be left out; False where there are not as many."""
        if seconds > self._left_s:
            self._leave_out(what)
            return False
        self.reserved_s += seconds
        return True

    def left_out(self, what: str) -> bool:
        """True when this was left out."""
        return what in self._left_out

    def warnings(self) -> list[str]:
        """What did not fit into the time limit, in one line."""
        if not self._left_out:
            return []
        return [
            f"once plans were chosen, the time limit of {self.run.limit_s:g} s left out: {', '.join(self._left_out)}; "
            "allow more with --time-limit"
        ]

    @property
    def _left_s(self) -> float:
        return max(0.0, self.run.written_by_s - time.monotonic() - self.reserved_s)

    def _leave_out(self, what: str) -> None:
        if what not in self._left_out:
            self._left_out[what] = None
            self.run.listener(Event("emit", f"the time is up: {what} left out"))

"""Threads on which partitions that do not wait for each other run at once.

Terms: a *wave* is a set of steps of which none reads what another one makes. A *lane* is a thread that
runs one step of a wave; the first lane is the caller's own thread.

Invariants: a step always runs on the same lane, since executables may belong to the thread that calls
them; a wave has ended, on all lanes, when `run` returns or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait


class Lanes:
    """So many threads, the caller's included."""

    def __init__(self, count: int) -> None:
        self._others = [ThreadPoolExecutor(1, f"collage-lane-{i}") for i in range(1, count)]

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make the calls of one wave, each on its lane.

        Raises:
            Exception: what the first failing call raised, once all have ended.
        """
        began = [lane.submit(call) for lane, call in zip(self._others, calls[1:], strict=False)]
        try:
            calls[0]()
        finally:
            wait(began)
        for other in began:
            other.result()

    def close(self) -> None:
        """End the threads; may be called twice."""
        for lane in self._others:
            lane.shutdown()


def waves(
    reads: Sequence[Sequence[str]], makes: Sequence[Sequence[str]], lanes: int
) -> list[tuple[int, ...]]:
    """Which steps run at once.

    Args:
        reads: per step, in an order in which they can run, the values it reads.
        makes: per step the values it makes.
        lanes: the most steps of a wave; with one, every step is a wave in the order given.
    """
    if lanes == 1:
        return [(step,) for step in range(len(reads))]
    depth_of: dict[str, int] = {}
    by_depth: dict[int, list[int]] = {}
    for step, (read, made) in enumerate(zip(reads, makes, strict=True)):
        depth = max((depth_of[name] + 1 for name in read if name in depth_of), default=0)
        depth_of |= dict.fromkeys(made, depth)
        by_depth.setdefault(depth, []).append(step)
    return [
        tuple(steps[start : start + lanes])
        for _, steps in sorted(by_depth.items())
        for start in range(0, len(steps), lanes)
    ]

"""Runs cases in sandboxed children, and says what became of each.

    python -m tests.fuzzing --first 0 --count 3000 --output found.jsonl

A child runs a batch and sends every outcome as it is made. When one dies, the first case without an outcome is run
again in a child of its own, and then without one runtime after the other, which names the runtime that crashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child, send_message
from tests.fuzzing.check import Outcome, check
from tests.fuzzing.graphs import random_case

BATCH = 40
LIMITS = ChildLimits(timeout_s=900, silence_s=120)
_MAY_CRASH = ("openvino", "mnn", "ncnn")


def outcomes(seeds: Sequence[int]) -> Iterator[Outcome]:
    """What becomes of each case, in order."""
    for begin in range(0, len(seeds), BATCH):
        left = list(seeds[begin : begin + BATCH])
        while left:
            made: list[Outcome] = []
            try:
                run_in_child(run_here, left, "", limits=LIMITS, on_message=made.append)
                yield from made
                left = []
            except ChildFailed as failure:
                yield from made
                culprit, *left = left[len(made) :]
                yield _alone(culprit, failure)


def run_here(seeds: list[int], without: str) -> None:
    """The child's side: run cases, sending each outcome as it is made."""
    for seed in seeds:
        send_message(check(random_case(seed), without))


def _alone(seed: int, failure: ChildFailed) -> Outcome:
    """The outcome of a case whose child died."""
    for without in ("", *_MAY_CRASH):
        made: list[Outcome] = []
        died = f"{failure.kind}: {failure.reason}"[:300]
        try:
            run_in_child(run_here, [seed], without, limits=LIMITS, on_message=made.append)
        except ChildFailed as again:
            failure = again
            continue
        if without and made[0].kind == "passed":
            return replace(made[0], kind="crashed", reason=f"{without}: {died}")
        with suppress(IndexError):
            return made[0]
    return Outcome(seed, "crashed", f"nobody alone: {failure.kind}: {failure.reason}"[:400])

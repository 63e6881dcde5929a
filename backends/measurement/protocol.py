"""How a measurement is made, as a value that is part of every cost's key.

Costs of different protocols are never compared. Whatever changes what is measured belongs here and
changes the digest.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from collage.backends.machine.process_policy import ENVIRONMENT

# Raise it when timing changes so much that older costs no longer compare.
VERSION = 2
_SMALLEST_EVICTION = 1 << 20


@dataclass(frozen=True)
class Protocol:
    """Options of a measurement."""

    # so many bytes of other memory are read, and some written, before each timed run, by all threads
    # together, as the rest of the model would; 0 leaves the caches warm
    evict_bytes: int = 0
    fresh_inputs: bool = True  # inputs are written before each sample
    # timing ends when half the 95 % confidence interval of the median is within this share of it, or
    # when its time is up
    precision: float = 0.01
    min_runs: int = 5  # timed runs at the least, or two where a call takes longer than `max_s`
    # time spent in timed runs at the least, so that a lucky moment is not the result
    min_s: float = 0.25
    # time spent in timing at the most, eviction included (but those are always made)
    max_s: float = 1.5
    warm_up_s: float = 0.05  # time for untimed runs first
    # the share by which the yardstick may move, or of the cores that other processes may use, before
    # a measurement is repeated
    disturbance: float = 0.03
    retries: int = 1  # how often a measurement is repeated at the most; the least disturbed one counts

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that decides what is measured, and of the version."""
        policy = dict(ENVIRONMENT)
        text = json.dumps({"version": VERSION, "policy": policy, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def eviction_for(touched_bytes: int, last_level_cache_bytes: int) -> int:
    """`Protocol.evict_bytes` for parts of a model.

    It is a power of two, so that models of similar size share their costs, and at most twice the last
    cache.

    Args:
        touched_bytes: by the whole model in a run (`collage.costs.measurement_context.touched_bytes`).
        last_level_cache_bytes: of this machine, see `hardware`.
    """
    wanted = min(touched_bytes, 2 * last_level_cache_bytes)
    if wanted < _SMALLEST_EVICTION:
        return 0
    return 1 << round(math.log2(wanted))

"""The key of a cost: everything that may change a measured latency.

Invariant: two measurements share a digest exactly when all five texts are equal; the digest stays the
same across versions of this program, or all stored costs would be lost.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from functools import cached_property

_SCHEME = "collage-cost-1"


@dataclass(frozen=True)
class CostKey:
    """The texts that identify a measurement."""

    sub_graph: str  # fingerprint of the canonical sub-graph
    target: str  # canonical text of the target with every option that matters
    backend_version: str  # the runtime's own version text
    hardware: str  # fingerprint of the machine (CPU, cores given, GPU, driver)
    protocol: str  # version and options of the measurement protocol

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the five texts, as 64 hexadecimal digits."""
        # JSON keeps the borders between the texts, so ("ab", "c") and ("a", "bc") differ.
        text = json.dumps([_SCHEME, *astuple(self)], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

"""The key of a cost: everything that may change a measured latency.

Invariant: two measurements share a digest exactly when all five texts are equal; the digest stays
the same across versions of this program (a test pins one), or all memory would be lost.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from functools import cached_property

_SCHEME = "collage-cost-1"


@dataclass(frozen=True)
class CostKey:
    """What was measured, on what, and how.

    Args:
        sub_graph: fingerprint of the canonical sub-graph.
        target: canonical text of the target with every option that matters.
        backend_version: the runtime's own version text.
        hardware: fingerprint of the machine (CPU, cores given, GPU, driver).
        protocol: version and options of the measurement protocol.
    """

    sub_graph: str
    target: str
    backend_version: str
    hardware: str
    protocol: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the five texts, as 64 hexadecimal digits."""
        # JSON keeps the borders between the texts, so ("ab", "c") and ("a", "bc") differ.
        text = json.dumps([_SCHEME, *astuple(self)], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

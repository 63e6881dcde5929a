"""One stored cost: a measurement or the reason why there is none, with its circumstances.

Invariants of a row that `check` accepts: the digest is that of its key; a measured row has a positive
latency, raw samples and no reason; an infeasible row has a reason and no latency; operator types are
sorted, each once; the time has a time zone.

A *structure* is the fingerprint of a sub-graph without the sizes of its values. It is no part of the key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from collage.cost_db.costs.key import CostKey
from collage.cost_db.plain_text import plain
from collage.partitioner.cost import Infeasible, Measured
from collage.partitioner.errors import BadInputError

Outcome = Literal["measured", "infeasible"]

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

# PostgreSQL's index entries hold 2,700 bytes at most.
_KEY_LIMITS = {
    "sub_graph": 200,
    "target": 500,
    "backend_version": 120,
    "hardware": 200,
    "protocol": 2_000,
}
_REASON_LIMIT = 4_000
_NOT_NEGATIVE = (
    *("latency_us", "spread_us", "error", "compile_s", "peak_memory_bytes", "yardstick_us"),
    "work",
)


def now() -> datetime:
    """The present in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class CostRow:
    """A cost and the circumstances under which it was found."""

    digest: str  # `CostKey.digest`
    sub_graph: str
    target: str
    backend_version: str
    hardware: str
    protocol: str
    outcome: Outcome  # `measured` or `infeasible`
    latency_us: float | None = None  # median of one call; None when infeasible
    # half the width of the median's 95 % confidence interval; None when infeasible
    spread_us: float | None = None
    samples_us: tuple[float, ...] = ()  # the raw samples in the order in which they were taken
    # by the runtime's own profiler, the time of each node in the order of the sub-graph's nodes; empty
    # when it was not profiled
    node_times_us: tuple[float, ...] = ()
    reason: str | None = None  # why it is infeasible, in one sentence
    error: float | None = None  # relative error of the outputs against the reference
    compile_s: float | None = None  # how long compiling took
    peak_memory_bytes: int | None = None  # most memory that the measuring child held
    # time of the yardstick kernel around this measurement, to compare days
    yardstick_us: float | None = None
    host: str = ""  # name of the machine that measured
    # what the hardware fingerprint stands for. Kept once for a fingerprint.
    hardware_description: Mapping[str, object] = field(default_factory=dict)
    op_types: str = ""  # operator types inside, sorted, each once, with one space between
    node_count: int = 0  # how many nodes are inside
    model_sha256: str | None = None  # the model for which this was first measured
    # other versions worth knowing (driver, Python, onnx …)
    versions: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)  # when it was measured, with time zone
    # symbolic fingerprint of the sub-graph; None in rows from before there was one
    structure: str | None = None
    work: float | None = None  # of the sub-graph at its sizes (`collage.costs.work`); None likewise

    def __post_init__(self) -> None:
        if self.reason is not None:
            # It often comes from a native runtime: any length, any bytes.
            text = self.reason.replace("\0", "").encode("utf-8", "replace").decode()
            object.__setattr__(self, "reason", text[:_REASON_LIMIT])

    @property
    def key(self) -> CostKey:
        """The five texts of the key."""
        return CostKey(self.sub_graph, self.target, self.backend_version, self.hardware, self.protocol)

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.target.partition(" ")[0]

    @property
    def cost(self) -> Measured | Infeasible:
        """The cost as the search takes it."""
        if self.latency_us is None:
            return Infeasible(self.reason or "infeasible")
        return Measured(self.latency_us, self.spread_us or 0.0, max(1, len(self.samples_us)))

    def check(self) -> None:
        """Check the invariants of this module.

        Raises:
            BadInputError: names the first field that is wrong, and why.
        """
        for name, limit in _KEY_LIMITS.items():
            _require(plain(name, getattr(self, name), limit), f"{name} is empty")
        _require(self.digest == self.key.digest, "digest is not that of its key")
        _require(0 <= self.node_count < 2**31, "node_count is negative or too large")
        _require(self.created_at.tzinfo is not None, "created_at has no time zone")
        plain("host", self.host, 255)
        words = plain("op_types", self.op_types, 100_000).split(" ") if self.op_types else []
        _require(words == sorted(set(words)), "op_types are not sorted, each once, one space between")
        for name in ("model_sha256", "structure"):
            value = getattr(self, name)
            _require(value is None or _SHA256.match(value), f"{name} is no SHA-256")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            sound = value is None or (math.isfinite(value) and value >= 0)
            _require(sound, f"{name} is negative or not finite")
        _require(
            all(math.isfinite(sample) and sample > 0 for sample in self.samples_us),
            "samples_us has a value that is not positive and finite",
        )
        _require(
            len(self.node_times_us) in (0, self.node_count)
            and all(math.isfinite(time) and time >= 0 for time in self.node_times_us),
            "node_times_us is neither empty nor one time for each node",
        )
        if self.outcome == "measured":
            _require(self.latency_us, "a measured row has no positive latency_us")
            _require(self.samples_us, "a measured row has no samples_us")
            _require(self.reason is None, "a measured row has a reason")
        else:
            _require(self.outcome == "infeasible", "outcome is neither 'measured' nor 'infeasible'")
            _require(self.latency_us is None, "an infeasible row has latency_us")
            _require(self.reason, "an infeasible row has no reason")


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise BadInputError(problem)

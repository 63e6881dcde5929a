"""`costs.cost(candidate)`: from the database, or extract → measure in a child → verify → store.

Terms: two candidates with one fingerprint and one target share a key, and are measured once. Of several
tuners only the one with the claim in the database measures a key; the others wait for its result.

Invariants: every measurement is committed as it is made. One that a time limit cut short is not: only this run
knows it. A `Measured` cost was measured on this hardware with this version of the runtime. A result is stored
with its error; this run's tolerance decides here.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from collage.backends.measurement.measure import Measurement, MeasureRequest
from collage.backends.measurement.protocol import Protocol
from collage.backends.measurement.request import PATIENCE
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.registry import backend_of, canonical, editions
from collage.cost_db.atlas import MOST_NODES, AtlasStore
from collage.cost_db.costs.key import CostKey
from collage.cost_db.costs.row import CostRow
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import StaleFenceError
from collage.costs.estimates import node_times_us
from collage.costs.leases import LEASE_S, new_owner, renewed, wait_a_little
from collage.costs.other_sizes import expected_at_other_sizes
from collage.costs.region_facts import facts_of
from collage.costs.work import work_of
from collage.events import Event, Listener
from collage.model.preparation import preparation_key
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.cost import Cost, Infeasible, Measured, Unknown
from collage.partitioner.errors import OutOfTimeError
from collage.partitioner.graph.fingerprint import fingerprint, symbolic_fingerprint
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runner import Runner

# A kernel whose numbers are this far off is wrong for every tolerance, not merely imprecise.
_PLAINLY_WRONG = 3.0


@dataclass
class Counts:
    """How many costs of a run were measured, known before, or infeasible."""

    measured: int = 0
    from_cache: int = 0
    infeasible: int = 0


@dataclass(frozen=True)
class CostSettings:
    """What costs depend on beside the candidate."""

    threads: int
    error_limit: float = 1e-3  # a candidate with a larger error on its own outputs is infeasible
    # the same for the whole model, whose outputs are what the tolerance is about
    whole_limit: float = 1e-3
    protocol: Protocol = field(default_factory=Protocol)  # how to measure
    # where what was converted or compiled is kept for this run; None for nowhere
    cache_dir: Path | None = None


class MeasuredCosts:
    """Costs of one model's candidates on a runner."""

    def __init__(
        self,
        model: Model,
        regions: RegionFiles,
        reference: Reference,
        database: CostDatabase,
        settings: CostSettings,
        runner: Runner,
        listener: Listener,
        cancel: threading.Event | None = None,
    ) -> None:
        self._model = model
        self._regions = regions
        self._reference = reference
        self._database = database
        self._settings = settings
        self._runner = runner
        self._listener = listener
        self._cancel = cancel
        self._hardware = runner.hardware.digest
        self._owner = new_owner()
        self._rows: dict[str, CostRow] = {}
        self._cut_short: set[str] = set()  # digests of rows that are not for others
        self._keys: dict[tuple[int, Target], CostKey] = {}
        self._canonicals: dict[Target, str] = {}
        self._versions: dict[Target, str] = {}
        self.counts = Counts()

    def limit_errors(self, error_limit: float, whole_limit: float) -> None:
        """Use other error limits from now on (see `CostSettings`)."""
        self._settings = replace(self._settings, error_limit=error_limit, whole_limit=whole_limit)

    def key(self, candidate: Candidate) -> CostKey:
        """The key under which this candidate's cost is stored."""
        identity = (candidate.nodes, candidate.target)
        if identity not in self._keys:
            self._keys[identity] = CostKey(
                sub_graph=fingerprint(self._model.index, candidate.nodes),
                target=self._canonical(candidate.target),
                backend_version=self._version(candidate.target),
                hardware=self._hardware,
                protocol=self._settings.protocol.digest,
            )
        return self._keys[identity]

    def has_met(self, candidate: Candidate) -> bool:
        """True when this candidate's key was needed before; to find it out takes long for large ones."""
        return (candidate.nodes, candidate.target) in self._keys

    def cost(self, candidate: Candidate) -> Cost:
        """What is known of a candidate so far; nothing is measured."""
        row = self._rows.get(self.key(candidate).digest)
        if row is None:
            return Unknown()
        whole = candidate.nodes == self._model.index.all_nodes
        limit = self._settings.whole_limit if whole else self._settings.error_limit
        if row.error is not None and not row.error <= limit:
            return Infeasible(f"wrong result: its error {row.error:.3g} exceeds {limit:.3g}")
        return row.cost

    def row(self, candidate: Candidate) -> CostRow | None:
        """The stored measurement of a candidate, where it is known."""
        return self._rows.get(self.key(candidate).digest)

    def recall(self, candidates: Iterable[Candidate]) -> None:
        """Look up what the database knows about these candidates."""
        digests = {self.key(c).digest for c in candidates} - self._rows.keys()
        self._remember(self._database.look_up(sorted(digests)))

    def expected_us(self, candidates: Iterable[Candidate]) -> dict[tuple[int, Target], float]:
        """Microseconds that some of those that are unknown may take, by the same regions at other sizes."""
        keys = {(c.nodes, c.target): self.key(c) for c in candidates}
        unknown = {region: key for region, key in keys.items() if key.digest not in self._rows}
        return expected_at_other_sizes(self._database, self._model.index, unknown)

    def measure(
        self,
        candidates: Sequence[Candidate],
        stop: Callable[[], bool] = lambda: False,
        limit_s: float | None = None,
    ) -> None:
        """Make the cost of every candidate known, by measuring those that are not.

        Args:
            candidates: in the order in which they matter.
            stop: asked before each measurement; True leaves the rest unknown.
            limit_s: seconds for each measurement; one that takes twice as long leaves its cost unknown, and so does waiting
                as long for another tuner that measures the same.

        Raises:
            CancelledError: the run was cancelled; what was measured before stays in the database.
        """
        self.recall(candidates)
        wanted = {self.key(c).digest: c for c in candidates if self.key(c).digest not in self._rows}
        late: set[str] = set()
        waited_s, patience_s = 0.0, PATIENCE * (math.inf if limit_s is None else limit_s)
        while wanted:
            claims = self._database.claim([self.key(c) for c in wanted.values()], self._owner, LEASE_S)
            self._remember(claims.known)
            granted = [digest for digest in wanted if digest in claims.granted]
            with renewed(self._database, self._owner, partial(self._not_stored, granted)):
                for digest in granted:
                    if stop():
                        return
                    if not self._measure_one(wanted[digest], claims.granted[digest], limit_s):
                        late.add(digest)
            known = self._rows.keys() | late
            wanted = {digest: c for digest, c in wanted.items() if digest not in known}
            if not wanted:
                return
            if stop() or waited_s >= patience_s:
                text = f"{len(wanted)} of these costs are left for later: another tuner measures them"
                self._listener(Event("measure", text))
                return
            begin = time.monotonic()
            wait_a_little(self._cancel)
            waited_s += time.monotonic() - begin

    def unique(self, candidates: Iterable[Candidate]) -> int:
        """How many different keys these candidates have."""
        return len({self.key(candidate).digest for candidate in candidates})

    def _measure_one(self, candidate: Candidate, fence: int, limit_s: float | None) -> bool:
        """Measure and store a cost; False where the time for it was not enough."""
        request = replace(self._request(candidate), limit_s=limit_s)
        digest = self.key(candidate).digest
        begin = time.monotonic()
        try:
            measurement = self._runner.measure(request, self._cancel)
        except OutOfTimeError as error:
            self._listener(Event("measure", f"{error}, and is left for later"))
            return False
        seconds = time.monotonic() - begin
        row = self._to_row(candidate, measurement)
        if measurement.cut_short:
            self._cut_short.add(digest)
        else:
            self._store(candidate, row, fence)
        self._rows[digest] = row
        self.counts.measured += 1
        self.counts.infeasible += row.outcome == "infeasible"
        self._tell(candidate, row, seconds)
        return True

    def _store(self, candidate: Candidate, row: CostRow, fence: int) -> None:
        if row.node_count <= MOST_NODES:
            AtlasStore(self._database).describe([facts_of(self._model.index, candidate.nodes)])
        # Another tuner may have taken over a late claim; then its row is stored.
        with contextlib.suppress(StaleFenceError):
            self._database.store(row, fence)

    def _not_stored(self, digests: Sequence[str]) -> list[str]:
        return [d for d in digests if d not in self._rows or d in self._cut_short]

    def _request(self, candidate: Candidate) -> MeasureRequest:
        model = self._regions.get(candidate.nodes)
        folder = model.path.parent
        inputs, expected = folder / "inputs.npz", folder / "expected.npz"
        if not expected.exists():
            write_samples(inputs, self._reference.values([s.name for s in model.inputs]))
            write_samples(expected, self._reference.expected([s.name for s in model.outputs]))
        whole = candidate.nodes == self._model.index.all_nodes
        # Errors of low precision may grow through a model: its mixes are judged by running them.
        reduced = self._runner.facts(candidate.target).arithmetic.numbers != "f32"
        return MeasureRequest(
            target=canonical(candidate.target, self._settings.threads),
            model=model,
            inputs_path=inputs,
            expected_path=expected,
            tolerance=sys.float_info.max if whole and reduced else _PLAINLY_WRONG,
            threads=self._settings.threads,
            protocol=self._settings.protocol,
            cache_dir=self._settings.cache_dir,
            profile=whole,
            counted=reduced,
        )

    def _to_row(self, candidate: Candidate, measurement: Measurement) -> CostRow:
        key = self.key(candidate)
        nodes = [self._model.index.nodes[i] for i in bits(candidate.nodes)]
        cost = measurement.cost
        times: dict[int, float] = {}
        if isinstance(cost, Measured) and measurement.ops:
            times, unmapped = node_times_us(
                self._model.index, candidate.nodes, cost.latency_us, measurement.ops
            )
            text = (
                f"{candidate.target}: profiled; {unmapped:.0%} of the time could not be mapped to nodes "
                "and is spread over them"
            )
            data = {"target": str(candidate.target), "unmapped": unmapped}
            self._listener(Event("measure", text, data=data))
        row = CostRow(
            digest=key.digest,
            **asdict(key),
            outcome="infeasible" if isinstance(cost, Infeasible) else "measured",
            reason=cost.reason if isinstance(cost, Infeasible) else None,
            error=measurement.error if isinstance(cost, Measured) else None,
            compile_s=measurement.compile_s,
            peak_memory_bytes=measurement.peak_memory_bytes,
            yardstick_us=measurement.yardstick_us,
            host=self._runner.host,
            hardware_description=asdict(self._runner.hardware),
            op_types=" ".join(sorted({node.op for node in nodes})),
            node_count=len(nodes),
            structure=symbolic_fingerprint(self._model.index, candidate.nodes),
            work=work_of(self._model.index, candidate.nodes),
            model_sha256=self._model.sha256,
            versions={
                **measurement.versions,
                candidate.target.backend: self._runner.facts(candidate.target).version,
                "python": self._runner.python,
            },
        )
        if isinstance(cost, Measured):
            return replace(
                row,
                latency_us=cost.latency_us,
                spread_us=cost.spread_us,
                samples_us=measurement.samples_us,
                node_times_us=tuple(times[i] for i in sorted(times)),
            )
        return row

    def _tell(self, candidate: Candidate, row: CostRow, seconds: float) -> None:
        what = f"{row.latency_us:.0f} µs" if row.latency_us is not None else f"infeasible: {row.reason}"
        text = f"{candidate.target} on {row.node_count} nodes: {what}"
        data = {
            "target": str(candidate.target),
            "nodes": row.node_count,
            "op_types": row.op_types,
            "latency_us": row.latency_us,
            "reason": row.reason,
            "seconds": seconds,
        }
        self._listener(Event("measure", text, self.counts.measured, data=data))

    def _remember(self, rows: Mapping[str, CostRow]) -> None:
        fresh = {digest: row for digest, row in rows.items() if digest not in self._rows}
        self._rows |= fresh
        self.counts.from_cache += len(fresh)
        self.counts.infeasible += sum(row.outcome == "infeasible" for row in fresh.values())

    def _canonical(self, target: Target) -> str:
        if target not in self._canonicals:
            self._canonicals[target] = str(canonical(target, self._settings.threads))
        return self._canonicals[target]

    def _version(self, target: Target) -> str:
        if target not in self._versions:
            facts = self._runner.facts(target)
            more = preparation_key(facts, self._model, self._reference.samples) + editions(target)
            rewriting = backend_of(target).rewriting(target)
            if rewriting is not None:
                version = self._runner.facts(rewriting.by).version
                more += f", rewritten ({rewriting.edition}) by {rewriting.by} {version}"
            self._versions[target] = facts.version + more
        return self._versions[target]

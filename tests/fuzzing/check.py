"""One case taken the whole way: ingest, a random plan, the artifact, a session, and several runs of it.

A partition that its runtime refuses, or that verification finds wrong, goes to ONNX Runtime, as a tuning would
give it to another target. What is left must be right: that is the session's results with inputs that no
verification saw, twice the same, and with other inputs in between.

All runs in this process, which native code may end.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.artifact.emit import emit
from collage.artifact.session import Session, load
from collage.artifact.verify import observe
from collage.backends.numerics.comparison import Expected
from collage.backends.numerics.reference import run_reference
from collage.backends.registry import installed
from collage.events import ignore
from collage.model.reference import RUNTIME, Reference, Sample
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.options import TuneOptions
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.extract import with_outputs
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.ingest.normalize import normalize
from collage.runner import Runner
from collage.runtime.compiled import CompiledRegions
from tests.fuzzing.graphs import Case, samples
from tests.fuzzing.plans import HOME, described, moved_home, random_plan, random_targets

TOLERANCE = 1e-3
# Results this small are sums that cancel: errors are not relative to them.
_SMALLEST = 1e-2
Array = np.ndarray
ChoosePlan = Callable[[Model, random.Random], Plan]


@dataclass(frozen=True)
class Outcome:
    """What a case came to.

    Args:
        kind: `passed`, `unusable` (the plain runtime cannot run the model, or its results are NaN),
            `refused` (by ingest alone), `failed` or `crashed`.
        reason: in one line; empty when it passed.
        plan: the plan at which it ended.
        moved: what runtimes refused or computed wrongly, each as target, operators and reason.
        partitions: how many ran, over all sizes.
    """

    seed: int
    kind: str
    reason: str = ""
    plan: str = ""
    moved: tuple[str, ...] = ()
    partitions: int = 0


@dataclass
class _Progress:
    plan: str = ""
    moved: list[str] = field(default_factory=list)
    partitions: int = 0


class _Here(Runner):
    """Runs in this process what a tuning runs in children, and keeps what came out."""

    observed: Mapping[str, float] = {}

    def run(self, function: Callable[..., Any], *args: Any, **_: Any) -> Any:
        made = function(*args)
        if function is observe:
            self.observed = made[0].errors
        return made


class _ReferenceHere(Reference):
    """Computes its values in this process."""

    def _compute_in_child(self, names: list[str]) -> None:
        folder = self._directory / f"values-{len(list(self._directory.glob('values-*')))}"
        folder.mkdir(parents=True)
        path = with_outputs(self.model, names, folder)
        for sample, known in zip(self.samples, self._known, strict=True):
            known |= run_reference(path, sample, names)

    def expected(self, names: Sequence[str], *, last: bool = False) -> tuple[dict[str, Expected], ...]:
        return tuple({**known} for known in self.values(names, last=last))


class _SamplingHere(Sampling):
    def reference(
        self, samples: Sequence[Sample], name: str, keep_all: bool = True, is_last: bool = False
    ) -> Reference:
        folder = self.work_dir / name
        return _ReferenceHere(self.model, samples, folder, self.listener, self.cancel, keep_all)


def check(case: Case, without: str = "", choose: ChoosePlan | None = None) -> Outcome:
    """Take a case the whole way.

    Args:
        without: a backend that gets no node.
        choose: makes the plan; by default a random one.
    """
    progress = _Progress()
    rng = random.Random(case.seed + 1)

    def chosen(model: Model, rng: random.Random) -> Plan:
        usable = [name for name in installed() if name != without]
        return random_plan(model.index, random_targets(rng, usable), rng)

    try:
        kind, reason = "passed", ""
        for size in case.sizes:
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                kind, reason = _check_size(case, size, Path(folder), rng, choose or chosen, progress)
            if kind != "passed":
                break
    except Exception as error:  # whatever it is, it is what the fuzzer looks for
        kind, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
    return Outcome(case.seed, kind, reason, progress.plan, tuple(progress.moved), progress.partitions)


def _check_size(
    case: Case, size: int, folder: Path, rng: random.Random, choose: ChoosePlan, progress: _Progress
) -> tuple[str, str]:
    source = folder / "source.onnx"
    source.write_bytes(case.model)
    proto = onnx.load_from_string(case.model)
    declared = _declared(proto, size)
    plain = [samples(declared, case.seed * 3 + i) for i in range(2)]
    outputs = [value.name for value in proto.graph.output]
    try:
        wanted = [run_reference(source, feed, outputs) for feed in plain]
    except Exception as error:
        return "unusable", " ".join(str(error).split())[:300]
    if any(a.dtype.kind == "f" and not np.isfinite(a).all() for made in wanted for a in made.values()):
        return "unusable", "NaN or infinite"
    free = {d.dim_param for v in proto.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    try:
        (folder / "model").mkdir()
        dims = dict.fromkeys(sorted(free), size)
        info = normalize(source, folder / "model", dims, 0, runtime=RUNTIME)
    except CollageError as error:
        return "refused", " ".join(str(error).split())[:300]
    model = Model.open(info.path)
    options = TuneOptions(threads=1)
    sampling = _SamplingHere(model, info, options, folder, None, False, ignore, None)
    plan = choose(model, rng)
    session = _session(model, plan, sampling, folder, progress)
    with session:
        return _runs(session, plain, wanted)


def _declared(proto: onnx.ModelProto, size: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each input that is no weight."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    return {
        value.name: (
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
            tuple(
                dim.dim_value if dim.HasField("dim_value") else size
                for dim in value.type.tensor_type.shape.dim
            ),
        )
        for value in proto.graph.input
        if value.name not in weights
    }


def _session(
    model: Model, plan: Plan, sampling: Sampling, folder: Path, progress: _Progress
) -> Session:
    """Emit and load the plan; what a runtime refuses or computes wrongly goes to ONNX Runtime."""
    for attempt in range(len(plan.partitions) + 1):
        progress.plan = described(model.index, plan)
        runner = _Here()
        regions = RegionFiles(model, folder / f"regions-{attempt}")
        report = {"tolerance": TOLERANCE, "partitions": [{"latency_us": None}] * len(plan.partitions)}
        path = folder / f"artifact-{attempt}.onnx"
        try:
            emit(plan, report, path, regions, sampling, runner, None)
        except Exception:  # a runtime's own, in which partition is found out now
            position, why = _culprit(model, plan, sampling, folder / f"alone-{attempt}")
            plan = _without(model, plan, position, why, progress)
            continue
        wrong = _first_wrong(model, plan, runner.observed)
        if wrong is not None:
            name, position = wrong
            text = f"error {runner.observed[name]:.2g}"
            plan = _without(model, plan, position, text, progress)
            continue
        progress.partitions += len(plan.partitions)
        return load(path, threads=1, cache_dir=False)
    raise AssertionError("partitions were moved more often than there are")


def _culprit(model: Model, plan: Plan, sampling: Sampling, folder: Path) -> tuple[int, str]:
    """The first partition that cannot be compiled and run by itself, and why.

    Raises:
        Exception: the failure of one that ONNX Runtime runs.
        AssertionError: all run.
    """
    regions = RegionFiles(model, folder)
    compiled = CompiledRegions(1)
    try:
        for position, part in enumerate(plan.partitions):
            region = regions.get(part.nodes)
            names = [spec.name for spec in region.inputs]
            try:
                executable = compiled.get(str(position), region, part.target)
                made = [
                    np.zeros(o.static_shape, o.dtype) if o.is_static else None for o in region.outputs
                ]
                for sample in sampling.seeded.values(names):
                    executable.bind([sample[name] for name in names], made)
                    executable.run()
                    assert len(executable.results) == len(region.outputs)
            except Exception as error:
                if part.target.backend == HOME.backend:
                    raise
                return position, f"{type(error).__name__}: {error}"
    finally:
        compiled.close()
    raise AssertionError(
        f"each partition runs alone, but not all together: {described(model.index, plan)}"
    )


def _without(model: Model, plan: Plan, position: int, why: str, progress: _Progress) -> Plan:
    part = plan.partitions[position]
    alone = described(model.index, Plan((part,)))
    if part.target.backend == HOME.backend:
        raise AssertionError(f"ONNX Runtime alone runs it, but not as a partition: {alone}: {why}")
    progress.moved.append(f"{alone}: {' '.join(why.split())[:300]}")
    return moved_home(plan, position)


def _first_wrong(model: Model, plan: Plan, errors: Mapping[str, float]) -> tuple[str, int] | None:
    """The value that is wrong, and the partition to blame.

    ONNX Runtime may be given what another runtime made slightly wrong, of which a part is small.
    """
    worst: tuple[float, str, int] | None = None
    for position, part in enumerate(plan.partitions):
        for name in SubGraph(model.index, part.nodes).outputs:
            error = errors.get(name, 0.0)
            if not error <= TOLERANCE:
                blamed = part.target.backend == HOME.backend and worst is not None
                return worst[1:] if blamed and worst is not None else (name, position)
            if part.target.backend != HOME.backend and error > (worst[0] if worst else 1e-5):
                worst = error, name, position
    return None


def _runs(
    session: Session, feeds: Sequence[Mapping[str, Array]], wanted: Sequence[Mapping[str, Array]]
) -> tuple[str, str]:
    """The first feed, the second, and the first again: nothing of an earlier run may be left."""
    known = [spec.name for spec in session.get_outputs()]
    if sorted(known) != sorted(wanted[0]):
        return "failed", f"outputs {known} instead of {list(wanted[0])}"
    for turn, which in enumerate((0, 1, 0)):
        names = None if turn != 1 else list(reversed(known))
        made = session.run(names, dict(feeds[which]))
        for name, array in zip(names or known, made, strict=True):
            if reason := difference(array, wanted[which][name]):
                return "failed", f"run {turn + 1}: output {name!r}: {reason}"
    return "passed", ""


def difference(made: Array, wanted: Array) -> str:
    """What is wrong with a result; empty when nothing is."""
    if not wanted.size and (made.dtype, made.ndim, made.size) == (wanted.dtype, wanted.ndim, 0):
        # For a Loop of no trips ONNX Runtime puts 0 where the file has a free dimension.
        return ""
    if (made.dtype, made.shape) != (wanted.dtype, wanted.shape):
        return f"{made.dtype} {made.shape} instead of {wanted.dtype} {wanted.shape}"
    if wanted.dtype.kind not in "fc":
        count = int(np.count_nonzero(made != wanted))
        near = wanted.dtype.itemsize == 1 and wanted.dtype.kind in "iu"
        if near and np.abs(made.astype(int) - wanted.astype(int)).max() <= 1:
            return ""
        return f"{count} of {wanted.size} values differ" if count else ""
    a, e = made.astype(np.float64), wanted.astype(np.float64)
    if not np.isfinite(a).all():
        return "NaN or infinite where the reference is finite"
    error = float(np.abs(a - e).max()) / max(float(np.abs(e).max()), _SMALLEST)
    return "" if error <= TOLERANCE else f"error {error:.2g}"

"""What is asked of a process that times plans, and what it answers.

Terms: a *round* times one block of calls of every plan.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from collage.backends.contract import SubModel
from collage.backends.numerics.comparison import Array, Expected, is_judged, output_error
from collage.backends.numerics.tensor_files import write_samples
from collage.model.sampling import Sampling
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec

# Time for timing the plans of one request: a share of the time limit, within bounds.
_COMPARISON_S, _LEAST_S, _SHARE = 20.0, 3.0, 0.15
# The rounds of a comparison, the calls of a plan in one, and a plan's share of starting a process, as estimates have it.
_ROUNDS, _START_S = 12, 0.5
FEWEST_CALLS = 3
# Waiting for other processes takes at most such a share of a time limit.
_WAITING_SHARE = 0.2
# Building one plan takes no longer than this, whatever the time limit is.
LONGEST_S = 300.0
# The failure of a plan that was not tried.
NO_TIME = "there was no time left to compile it"
# A plan this much slower in its best block than the best plan in its median cannot win.
HOPELESS_RATIO = 1.06
# A block is disturbed where so many of its threads waited for a core in the mean.
DISTURBED = 0.1


@dataclass(frozen=True)
class PlanStep:
    """One partition.

    Args:
        region: the name of its sub-model among the request's.
        target: where it runs.
        inputs: its inputs as they are in this request, where the sub-model leaves dimensions open.
        outputs: its outputs in the same way.
    """

    region: str
    target: Target
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True)
class PlanSteps:
    """A plan's steps in execution order, and how many of them may run at once."""

    steps: tuple[PlanStep, ...]
    lanes: int = 1


@dataclass(frozen=True)
class TimingRequest:
    """Plans to be timed against each other.

    Args:
        plans: what is timed.
        regions: sub-models by name.
        inputs: the graph's inputs.
        outputs: the graph's outputs that steps make.
        samples_file: inputs of every sample (`collage.backends.numerics.tensor_files`).
        expected_file: reference outputs for each of them.
        metric: how an output's error is measured.
        error_limit: plans with a larger error are failures; None only records the error.
        counted: whether differences are counted, since somebody else judges results.
        threads: threads of one call.
        rounds: how many rounds at the most.
        budget_s: time for timing; at least three rounds are run whatever it says.
        needed: so many of the first plans are prepared however long that takes.
        prepare_s: time for preparing the others; one that comes later is a failure. None for no bound.
        cache_dir: where what was converted or compiled once is kept; None for nowhere.
        block_s: time of one plan's calls in a round; three calls at the least.
        prune: drop plans that cannot win any more, since a plan that may be returned is faster.
        sure_error: a plan that errs no more by the metric `max` may be returned, whatever is found out of the others
            later.
        backwards: the needed plans are built last to first. The later of two builds of one plan in a process is
            faster (docs/results/comparing-plans.md), so the order must change.
        seen_us: the distances of the cores that were seen so far (`collage.backends.machine.core_distance`).
        patience_s: how long it may wait in all until other processes leave the cores alone.
        silence_s: how long building one plan, or one of its blocks, may take. A needed plan has at least `LONGEST_S`.
    """

    plans: tuple[PlanSteps, ...]
    regions: Mapping[str, SubModel]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    samples_file: Path
    expected_file: Path
    metric: str = "max"
    error_limit: float | None = None
    counted: bool = False
    threads: int = 1
    rounds: int = 24
    budget_s: float = 20.0
    needed: int = 1
    prepare_s: float | None = None
    cache_dir: Path | None = None
    block_s: float = 0.12
    prune: bool = True
    sure_error: float = math.inf
    backwards: bool = False
    seen_us: tuple[float, ...] = ()
    patience_s: float = 0.0
    silence_s: float = LONGEST_S

    def error(self, made: Mapping[str, Array], wanted: Mapping[str, Expected]) -> float:
        """The error of the outputs of one sample by the metric."""
        actual, expected = [made[name] for name in wanted], list(wanted.values())
        return output_error(self.metric, actual, expected, self.counted)


@dataclass(frozen=True)
class PlanTiming:
    """What was found out about one plan.

    Args:
        samples_us: the median of each of its blocks, by round.
        step_us: median time of each partition inside the running plan.
        copy_us: values that partitions read in another memory than that of their maker: name, position of the
            partition, and time of the copy.
        error: largest error over outputs and samples.
        exactness: the same by the metric `max`, whichever the request's is.
        failure: why it was not timed, or None.
        is_final: it could not be compiled at all, or its process crashed or hung: at other sizes it need not be tried.
        left_out: how many rounds of the request do not count, since the cores were far apart.
        far: they were in all of the request, or all but too few rounds, so that all rounds are here.
        seen_us: the distances of the cores that were seen or known (`collage.backends.machine.core_distance`).
        others: how many cores other processes used while the plans of the request were timed, in the mean.
        quiet_s: how long the request waited for other processes.
        waits: for each block, how many of its threads waited for a core in the mean; empty where nobody looked.
    """

    samples_us: tuple[float, ...] = ()
    step_us: tuple[float, ...] = ()
    error: float | None = None
    failure: str | None = None
    is_final: bool = False
    left_out: int = 0
    far: bool = False
    seen_us: tuple[float, ...] = ()
    others: float = 0.0
    quiet_s: float = 0.0
    waits: tuple[float, ...] = ()
    copy_us: tuple[tuple[str, int, float], ...] = ()
    exactness: float | None = None

    @property
    def latency_us(self) -> float:
        """The median over rounds."""
        return statistics.median(self.samples_us)

    @property
    def quiet(self) -> tuple[bool, ...]:
        """Which of its blocks no other process disturbed."""
        return tuple(wait <= DISTURBED for wait in self.waits) or (True,) * len(self.samples_us)

    @property
    def weights(self) -> tuple[float, ...]:
        """How much each of its blocks says: 1 for a quiet one, a half where `DISTURBED` is just reached."""
        known = tuple(1 / (1 + (wait / DISTURBED) ** 2) for wait in self.waits)
        return known or (1.0,) * len(self.samples_us)


@dataclass(frozen=True)
class Refused:
    """Sent as soon as a plan fails, since a later one may end the process.

    Args:
        position: of the plan.
        timing: has its failure.
    """

    position: int
    timing: PlanTiming


def told_failure(failures: Iterable[str | None]) -> str | None:
    """What to tell of all failures of one plan: whatever else was seen goes before a lack of time."""
    seen = [failure for failure in failures if failure]
    return next((failure for failure in seen if failure != NO_TIME), seen[0] if seen else None)


def without_plans(
    sampling: Sampling,
    error_limit: float | None = None,
    prune: bool = True,
    sure_error: float = math.inf,
) -> TimingRequest:
    """A request without plans: every sample and its reference outputs as files.

    Args:
        sampling: the samples of the run.
        error_limit: plans with a larger error are failures; None only records it.
        prune: drop plans that cannot be the fastest.
        sure_error: as `TimingRequest` has it.
    """
    index = sampling.model.index
    # The other outputs are inputs or constants passed through.
    made = [name for name in index.outputs if name in index.producer]
    folder = sampling.work_dir / "request"
    folder.mkdir(parents=True, exist_ok=True)
    samples, expected = folder / "samples.npz", folder / "expected.npz"
    if not expected.exists():
        write_samples(samples, [sample for known in sampling.compared for sample in known.samples])
        write_samples(
            expected, [value for known in sampling.compared for value in known.expected(made)]
        )
    return TimingRequest(
        budget_s=_budget_s(sampling.options.time_limit_s),
        plans=(),
        regions={},
        inputs=sampling.info.inputs,
        outputs=tuple(made),
        samples_file=samples,
        expected_file=expected,
        metric=sampling.options.metric,
        error_limit=error_limit,
        counted=is_judged(sampling.options.tolerance),
        prune=prune,
        sure_error=sure_error,
        threads=sampling.threads,
        patience_s=min(
            sampling.options.wait_for_quiet_s,
            _WAITING_SHARE * (sampling.options.time_limit_s or math.inf),
        ),
        cache_dir=sampling.cache_dir,
    )


def expected_plan_s(
    *, compile_s: float, latency_s: float, samples: int, limit_s: float | None
) -> float:
    """Seconds that one of a few plans takes in a comparison, before any was made.

    Args:
        compile_s: what compiling took.
        latency_s: of one call.
        samples: that it is verified on.
        limit_s: the caller's limit for the run, or None.
    """
    block_s = (FEWEST_CALLS + 2) * latency_s + TimingRequest.block_s
    rounds_s = min(_ROUNDS * block_s, _budget_s(limit_s) / 2)
    return _START_S + compile_s + (samples + 2) * latency_s + rounds_s


def _budget_s(limit_s: float | None) -> float:
    """Time for the rounds of one comparison."""
    return max(_LEAST_S, min(_COMPARISON_S, _SHARE * (limit_s or math.inf)))

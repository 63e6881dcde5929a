"""The inputs of a run: seeded ones for the artifact, those it chooses by, and held-out ones.

Invariant: plans are chosen by the first samples. Held-out ones only reject: mixes within an error
budget, and whole plans in their comparison.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.comparison import is_measured
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.events import Listener
from collage.metrics.labels import is_label
from collage.model.reference import LONGEST_TIES_S, Reference, Sample
from collage.model.sample_inputs import read_samples
from collage.options import TuneOptions
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import NormalizedInfo

_SEEDS = 2
MOST_SEARCHED = 100
"""With a metric of the task: samples that choose plans, each of which takes an inference of every mix."""
# Finding out what rounding decides may take such a share of a time limit.
_TIES_SHARE = 0.1
_MOST_COMPARED = 24  # samples that plans are compared by beside a metric of the task
_PROOF_RUNS = 2  # of the reference on each seed: whether it runs at all, and what a plan hands over
_MOST_STORED_BYTES = 4 << 20  # of inputs in an artifact


@dataclass
class Sampling:
    """The samples of one run with their reference values."""

    model: Model
    info: NormalizedInfo  # its inputs
    options: TuneOptions  # seed, threads and metric
    work_dir: Path  # where values and compiled blobs are kept
    inputs: Path | None  # the user's own samples (`read_samples`); None for seeded ones
    hold_out: bool  # make seeded held-out samples where the user gives none
    listener: Listener
    cancel: threading.Event | None
    until_s: float = math.inf  # the reference of the samples that plans are chosen by is there by then
    seeds: tuple[int, ...] = field(init=False)
    seeded: Reference = field(init=False)
    chosen_by: Reference = field(init=False)
    held_out: Reference | None = field(init=False, default=None)
    # With a metric of the task: the samples that plans are chosen by, and those that prove the result.
    searched: list[Sample] = field(init=False, default_factory=list)
    proof_samples: list[Sample] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        first = self.options.seed
        self.seeds = tuple(range(first, first + _SEEDS))
        # Beside given inputs these prove the artifact, which comes last.
        self.seeded = self.reference(
            [self._seeded(seed) for seed in self.seeds],
            "seeded",
            keep_all=True,
            is_last=self.inputs is not None,
        )
        self.chosen_by = self.seeded
        rest: list[Sample] = []
        if self.inputs is not None:
            scored = self.options.evaluate is not None
            ignored = is_label if scored and self.inputs.is_file() else None
            given = read_samples(self.inputs, self.info.inputs, ignored)
            middle = (len(given) + 1) // 2
            if scored:
                middle = searched_count(len(given))
                self.searched, self.proof_samples = list(given[:middle]), list(given[middle:])
                # Errors are measured on a few of them, and the metric on all.
                given = given[: min(middle, _MOST_COMPARED)]
                middle = (2 * len(given) + 2) // 3
            self.chosen_by = self.reference(given[:middle], "given", keep_all=True)
            rest = list(given[middle:])
        elif self.hold_out:
            rest = [self._seeded(seed + _SEEDS) for seed in self.seeds]
        if rest:
            self.held_out = self.reference(rest, "held-out")

    def with_options(self, options: TuneOptions) -> Sampling:
        """The same samples with the same values, for a run with other options but for the seed."""
        made = copy.copy(self)
        made.options = options
        return made

    def hurry(self, until_s: float) -> None:
        """Find out by then what rounding decides, by `time.monotonic`, or not at all."""
        self.chosen_by.until_s = min(self.chosen_by.until_s, until_s)

    def check_reference(self, *, only_outputs: bool = False) -> None:
        """Make sure that the reference can be compared with, before any target is.

        Args:
            only_outputs: compute no other values yet.

        Raises:
            ModelError: an output of the reference has NaN, or no element of any output is finite.
            OutOfTimeError: the reference was not computed in time.
        """
        infinite: dict[str, bool] = {}
        for values in self.chosen_by.values(self._made, last=only_outputs):
            for name, value in values.items():
                if _has_nan(value):
                    raise ModelError(
                        f"the reference output {name!r} has NaN on these inputs, so nothing can be compared with it; "
                        f"{self._ask_for_inputs()}, or try another --seed"
                    )
                if value.size:
                    infinite[name] = infinite.get(name, True) and _not_finite(value) == value.size
        if infinite and all(infinite.values()):
            names = ", ".join(map(repr, infinite))
            raise ModelError(
                f"no element of the reference output {names} is finite on these inputs, so nothing can be compared "
                f"with it; {self._ask_for_inputs()}, or try another --seed"
            )

    def compute_held_out(self) -> None:
        """Compute what plans are compared by beside what they are chosen by, while there is time.

        Raises:
            ModelError: the reference runtime cannot run the model on these.
            OutOfTimeError: it did not end in time.
        """
        if self.held_out is not None:
            self.held_out.values(self._made)

    def proof_s(self, is_rewritten: bool) -> float:
        """Seconds that the reference values which prove the artifact are expected to take.

        Args:
            is_rewritten: the artifact has other nodes than the model, so it is compared with values of its own.
        """
        runs = 0 if self.inputs is None and self.seeded.keeps_all else _PROOF_RUNS
        one_s = self.chosen_by.seconds / len(self.chosen_by.samples)
        return (runs + is_rewritten) * _SEEDS * one_s

    @property
    def _made(self) -> list[str]:
        """The outputs that nodes make."""
        return [name for name in self.model.index.outputs if name in self.model.index.producer]

    def proof(self) -> Reference:
        """The samples that prove the artifact: seeded ones, or given ones where the model cannot run on seeds.

        Raises:
            ModelError: the model runs on given inputs alone, and these are too large to store.
        """
        if self.inputs is None:
            return self.seeded
        # Seeds switch no noise off.
        if not self.seeded.draws and self._runs_on_seeds():
            return self.seeded
        few = self.chosen_by.samples[:_SEEDS]
        size = sum(value.nbytes for sample in few for value in sample.values())
        if size > _MOST_STORED_BYTES:
            raise ModelError(
                f"the model cannot run on seeded inputs, and the given ones ({size >> 20} MiB) are too large to be "
                f"stored in the artifact ({_MOST_STORED_BYTES >> 20} MiB); give smaller ones with --inputs"
            )
        if len(few) == len(self.chosen_by.samples):
            return self.chosen_by  # its values are known
        return self.reference(few, "proof", is_last=True)

    def _runs_on_seeds(self) -> bool:
        try:
            values = self.seeded.values(self._made, last=True)
        except ModelError:
            return False
        return not any(_has_nan(value) for known in values for value in known.values())

    @property
    def compared(self) -> list[Reference]:
        """The samples that whole plans are compared by."""
        return [self.chosen_by] if self.held_out is None else [self.chosen_by, self.held_out]

    @property
    def threads(self) -> int:
        """Threads of one call."""
        return self.options.threads or default_threads()

    @property
    def cache_dir(self) -> Path:
        """Folder for conversions of this run, so that each is made once."""
        folder = self.work_dir / "compiled"
        folder.mkdir(exist_ok=True)
        return folder

    def about_outputs(self) -> list[str]:
        """What the report says of outputs whose comparison proves less than it seems to."""
        counts = self.chosen_by.ties()
        for name, count in (self.held_out.ties() if self.held_out else {}).items():
            counts[name] = max(count, counts.get(name, count))
        told = [
            f"rounding alone decides up to {ties} of {size} elements of output {name!r}, so these were compared "
            "only with what the model itself makes of them (docs/numeric-ties.md)"
            for name, (ties, size) in counts.items()
            if name in self.model.index.outputs
        ]
        made = self._made
        first, *others = (v for known in self.compared for v in known.values(made))
        for name in made:
            worst = max((v[name] for v in (first, *others)), key=_not_finite)
            if _not_finite(worst):
                told.append(
                    f"{_not_finite(worst)} of {worst.size} elements of the reference output {name!r} are infinite or "
                    f"NaN and were not compared; {self._ask_for_inputs()} to compare more"
                )
        if all(_same(first[name], [other[name] for other in others]) for name in made):
            told.append(
                "no output changes from one sample input to the next, or all are empty, so that comparing them proves "
                f"little: {self._ask_for_inputs()}"
            )
        return told

    def beyond_comparing(self) -> str:
        """Why a correct plan may have failed; empty where there is no such reason."""
        found = {name for known in self.compared for name in known.beyond_comparing}
        names = [repr(name) for name in self.model.index.outputs if name in found]
        if not names:
            return ""
        return (
            f"; with these inputs rounding alone decides most of {', '.join(names)}, or how many elements there are, so "
            f"that runtimes can hardly agree: {self._ask_for_inputs()}"
        )

    def _ask_for_inputs(self) -> str:
        return f"give {'real' if self.inputs is None else 'other'} ones with --inputs"

    def _seeded(self, seed: int) -> Sample:
        return seeded_inputs(self.info.inputs, seed, table_bounds(self.model.index))

    def reference(
        self,
        samples: Sequence[Sample],
        name: str,
        keep_all: bool = False,
        is_last: bool = False,
    ) -> Reference:
        """Reference values of samples, in a folder of this name.

        Args:
            keep_all: compute all values at once, since more will be asked for.
            is_last: they prove the artifact, which comes when the time is up.
        """
        folder = self.work_dir / name
        limit_s = self.options.time_limit_s or math.inf
        ties_s = min(LONGEST_TIES_S, _TIES_SHARE * limit_s)
        until_s = math.inf if is_last else self.until_s
        return Reference(
            self.model, samples, folder, self.listener, self.cancel, keep_all, ties_s, until_s
        )


def searched_count(samples: int) -> int:
    """How many of the samples for a metric of the task choose plans; the others prove."""
    return min((samples + 1) // 2, MOST_SEARCHED)


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind in "fcV" and bool(np.isnan(_wide(value)).any())


def _not_finite(value: np.ndarray) -> int:
    if not is_measured(value.dtype):
        return 0
    return int(np.count_nonzero(~np.isfinite(_wide(value))))


def _wide(value: np.ndarray) -> np.ndarray:
    """The value in a type of numpy's own: ml_dtypes' floats are of kind "V"."""
    return value.astype(np.float32) if value.dtype.kind == "V" else value


def _same(value: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Whether a value is empty, or the same with each of several samples."""
    if value.size == 0:
        return all(other.size == 0 for other in others)
    has_nan = value.dtype.kind in "fc"
    return bool(others) and all(np.array_equal(value, o, equal_nan=has_nan) for o in others)


def about_seeded_inputs(has_budget: bool, calibrates: bool) -> list[str]:
    """What the report warns of when a run saw seeded inputs only.

    Args:
        has_budget: errors were weighed against time.
        calibrates: integers were fitted to the inputs.
    """
    warnings = []
    if has_budget:
        warnings.append(
            "errors were measured on seeded inputs; give real ones with --inputs to sample what the "
            "model was trained for"
        )
    if calibrates:
        warnings.append(
            "integers were calibrated on seeded inputs, so they do not fit what the model was trained for; "
            "give real ones with --inputs"
        )
    return warnings

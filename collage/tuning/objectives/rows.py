"""The model of a run with more rows: its samples and sub-models, to measure and write plans whose calls compute several requests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from collage.backends.numerics.tensor_files import write_npz
from collage.events import Event
from collage.model.preparation import calibrates
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.objective import weights_of
from collage.objectives.goal import Goal
from collage.objectives.more_rows import MoreRows, with_rows
from collage.objectives.settings import row_counts
from collage.runtime.joined import joined
from collage.tuning.stages import Form, Refined

# Making one takes about so long; with less time left none is made.
_LEAST_S = 8.0


@dataclass(frozen=True)
class Forms:
    """The forms of a run's model by the rows of a call; the first has one row."""

    by_rows: dict[int, Form]


def forms(refined: Refined, goal: Goal) -> Forms:
    """The model as it is, and with more rows where that serves the goal and the rows stay apart.

    A listener is told why there is no form with more rows.
    """
    found = {1: Form(refined.sampling, refined.sub_models)}
    options = refined.request.options
    # A check of the caller's, and a metric, were made for one row.
    if "throughput" not in weights_of(goal.objective) or refined.request.check or options.evaluate:
        return Forms(found)
    bounds = [bound for bound in (goal.p99_us, goal.median_us) if bound is not None]
    for rows in row_counts(refined.winner, min(bounds, default=None)):
        if time.monotonic() > refined.objective_end_s - _LEAST_S:
            break
        folder = refined.run.work_dir / f"rows-{rows}"
        made = with_rows(refined.model, rows, folder, refined.run.cancel)
        if isinstance(made, str):
            refined.run.listener(Event("objective", f"calls of {rows} requests are left out: {made}"))
            break
        found[rows] = _form(refined, made, folder)
    return Forms(found)


def _form(refined: Refined, made: MoreRows, folder: Path) -> Form:
    sampling = Sampling(
        model=made.model,
        info=made.info,
        options=refined.request.options,
        work_dir=folder,
        inputs=_given(refined, made.rows, folder),
        hold_out=False,
        listener=refined.run.listener,
        cancel=refined.run.cancel,
    )
    calibrate = sampling.chosen_by.values if calibrates(refined.facts) else None
    return Form(sampling, RegionFiles(made.model, folder / "regions", calibrate))


def _given(refined: Refined, rows: int, folder: Path) -> Path | None:
    """The caller's samples as rows of one; None where there are none."""
    if refined.request.inputs is None:
        return None
    samples = refined.sampling.chosen_by.samples
    path = folder / "given.npz"
    write_npz(path, joined([samples[i % len(samples)] for i in range(rows)], rows))
    return path

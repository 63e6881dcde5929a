"""The errors that a run allows, from the caller's options."""

from __future__ import annotations

from dataclasses import dataclass

from collage.accuracy.target_choice import EXACT_ERROR
from collage.options import TuneOptions

# Up to this tolerance a run asks for exact arithmetic, and each partition alone must keep to it.
_EXACT_TOLERANCE = 2e-3
# With a budget a partition may be this far off on its own outputs; the model's outputs decide.
_LOCAL_ERROR = 0.5
# Errors for which plans are proposed, beside the tolerance asked for.
_FRONT = (1e-2, 5e-2, 3e-3, 1e-1, 2e-2)
# With a metric of the task the same in shares of its budget, in place of errors.
_SHARES = (1.0, 0.5)
# A whole model may err by this much: the comparison judges it by the caller's metric.
_ANY_ERROR = 3.0


@dataclass(frozen=True)
class ErrorLimits:
    """The errors of one run."""

    # True where more is allowed than exact arithmetic needs, or a Pareto front is asked for
    has_budget: bool
    tolerances: tuple[float, ...]  # errors that plans are sought for, the one asked for first
    error_limit: float  # plans with a larger error are not timed
    local_limit: float  # partitions with a larger error on their own outputs are not used
    whole_limit: float  # the same for the whole model
    # whole models that err by no more take part in searches and comparisons as they are
    exact_limit: float
    slower_too: bool  # True where plans that cannot be the fastest are sought as well

    @classmethod
    def of(cls, options: TuneOptions, is_evaluated: bool) -> ErrorLimits:
        """The limits of a run.

        Args:
            options: what the caller chose.
            is_evaluated: whether the caller's own check decides too.
        """
        asked = options.tolerance
        scored = options.evaluate is not None
        many = options.pareto or is_evaluated or scored
        budget = many or asked > _EXACT_TOLERANCE or options.metric != "max"
        front = tuple(
            dict.fromkeys([asked, *(error for error in _FRONT if options.pareto or error < asked)])
        )
        if scored:
            front = _SHARES
        return cls(
            has_budget=budget,
            tolerances=front if many else (asked,),
            error_limit=_ANY_ERROR if options.pareto else asked,
            local_limit=_LOCAL_ERROR if budget else asked,
            whole_limit=_ANY_ERROR if budget else asked,
            # The error by another metric is known only after the comparison.
            exact_limit=asked if options.metric == "max" and not scored else EXACT_ERROR,
            slower_too=many,
        )

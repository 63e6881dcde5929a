"""Options of targets: what an option is, and those that several backends or all of them have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option of a target.

    Args:
        name: as in `-name=value`.
        default: the value when it is not given.
        choices: the values allowed; empty where `pattern` decides.
        pattern: a regular expression for free values, e.g. `[1-9][0-9]*`.
        help: one sentence for `collage targets` and docs/backends.md.
        affects_cost: False for an option that stays out of cost keys.
        is_later: True for an option that came after costs were stored, and whose default keeps the old
            behavior: the default is left out of cost keys, so that stored costs stay valid.
        tunable: values that local search may set for single partitions where the user left the option
            open; each computes as exactly as the default.
        whole_first: True where a value is tunable only after the whole model was timed with it.
        on_trial: True where tunable values are tried on the whole model of the fastest target, a few in each run.
        edition: raised when other values than the default make the runtime do something else: costs that were stored
            before are not those of now.
    """

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    pattern: str = ".+"
    affects_cost: bool = True
    is_later: bool = False
    tunable: tuple[str, ...] = ()
    whole_first: bool = False
    on_trial: bool = False
    edition: int = 1


def switch(name: str, text: str) -> Option:
    """A setting of a runtime that is on, and that tuning tries to turn off."""
    return Option(
        name,
        "on",
        text,
        choices=("on", "off"),
        is_later=True,
        tunable=("off",),
        whole_first=True,
        on_trial=True,
    )


RULES = Option(
    "rules",
    "none",
    "A file (YAML or JSON) with the partition rule to use for this target.",
    affects_cost=False,
)
HOST_LABEL = Option(
    "host",
    "any",
    "Label of the kind of machine to measure on; the same for all targets of one tuning.",
    pattern="[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    affects_cost=False,  # the hardware in a cost key has the label
)
THREADS = Option(
    "threads",
    "auto",
    "Threads that one call may use; auto is what the tuner or `load` decides for all targets.",
    pattern="auto|[1-9][0-9]{0,3}",
    tunable=("1", "2", "4", "8", "16", "32"),
)
# Below, a second thread may cost more than it gives (docs/results/runtime-settings.md).
SHORT_CALL_US = 2000.0

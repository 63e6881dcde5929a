"""How many requests run at once, and how many threads each has.

Invariant: the threads of all instances together are never more than the cores given, unless the caller states
more threads for a single one.
"""

from __future__ import annotations

from typing import Literal

from collage.partitioner.candidate import Instances
from collage.partitioner.errors import BadInputError

Count = int | Literal["auto"]


def stages_here(
    *, instances: Count, threads: int | None, planned: Instances | None, cores: int
) -> tuple[int, ...]:
    """The stages of the pipeline that an artifact was tuned for; nothing where the caller or the machine wants another
    number of requests or threads.
    """
    if planned is None or instances != "auto" or planned.cores != cores:
        return ()
    return planned.stages if threads in (None, planned.threads) else ()


def divided(
    *, instances: Count, threads: int | None, planned: Instances | None, cores: int
) -> tuple[int, int]:
    """The number of instances, and the threads of each.

    Args:
        instances: as the caller has it; "auto" for what the artifact was tuned for, or one.
        threads: of one call, as the caller has it; None for its share of the cores.
        planned: what the artifact was tuned for.
        cores: given to this process.

    Raises:
        BadInputError: they are no such numbers, or do not fit the cores.
    """
    if threads is not None and (type(threads) is not int or threads < 1):
        raise BadInputError(
            f"threads is {threads!r}; give a number from 1, or None for a share of the cores"
        )
    if instances == "auto":
        if planned is None:
            return 1, threads or cores
        if stages_here(instances=instances, threads=threads, planned=planned, cores=cores):
            return planned.count, planned.threads
        each = min(threads or planned.threads, cores)
        return max(1, min(planned.count * cores // planned.cores, cores // each)), each
    if not isinstance(instances, int) or isinstance(instances, bool) or instances < 1:
        raise BadInputError(f"instances is {instances!r}; give a number from 1, or 'auto'")
    each = threads or max(1, cores // instances)
    if instances > 1 and instances * each > cores:
        raise BadInputError(
            f"{instances} instances of {each} threads need more than the {cores} cores of this process; "
            f"give at most {max(1, cores // each)} instances, or 'auto'"
        )
    return instances, each

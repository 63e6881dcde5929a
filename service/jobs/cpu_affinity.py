"""Which cores of this machine answer requests, and which run jobs.

A measurement shares nothing with the server when each has cores of its own: what hundreds of clients cost
is then paid by the server's cores alone. By default all share all, which is right as long as few watch.
"""

from __future__ import annotations

import os

from collage.partitioner.errors import BadInputError


def keep_for_server(count: int) -> list[int]:
    """Keep the calling thread, and threads and processes that it starts from now on, to a few cores.

    Args:
        count: how many cores the server gets; 0 changes nothing.

    Returns:
        The cores that jobs are to run on; empty: wherever the server runs.

    Raises:
        BadInputError: no core would be left for jobs, or this platform cannot do it.
    """
    if not count:
        return []
    if not hasattr(os, "sched_setaffinity"):
        raise BadInputError("COLLAGE_SERVER_CORES: this platform cannot keep processes to cores")
    cores = sorted(os.sched_getaffinity(0))
    if count >= len(cores):
        raise BadInputError(
            f"COLLAGE_SERVER_CORES is {count}, and of {len(cores)} cores one at least is for jobs"
        )
    os.sched_setaffinity(0, cores[:count])
    return cores[count:]

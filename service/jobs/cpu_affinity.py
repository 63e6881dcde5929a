"""Which cores of this machine answer requests, and which run jobs.

With cores of its own, the server does not disturb measurements. By default all share all cores.
"""

from __future__ import annotations

import os

from collage.partitioner.errors import BadInputError


def keep_for_server(count: int) -> list[int]:
    """Keep the calling thread, and what it starts from now on, to `count` cores; 0 changes nothing.

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

"""Cores that are kept for the server are no job's, and the other way round."""

from __future__ import annotations

import os
import threading

import pytest

from collage.partitioner.errors import BadInputError
from collage.service.jobs.cpu_affinity import keep_for_server

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="two cores are needed to share them out",
)


def _in_a_thread(count: int) -> tuple[list[int], set[int]]:
    """What jobs get and where the server is, leaving this thread's own cores alone."""
    found: list[tuple[list[int], set[int]]] = []
    thread = threading.Thread(
        target=lambda: found.append((keep_for_server(count), os.sched_getaffinity(0)))
    )
    thread.start()
    thread.join()
    return found[0]


def test_by_default_all_share_all() -> None:
    jobs, server = _in_a_thread(0)
    assert jobs == [] and server == os.sched_getaffinity(0)


def test_the_server_keeps_one_and_jobs_get_the_others() -> None:
    jobs, server = _in_a_thread(1)
    assert len(server) == 1 and set(jobs) == os.sched_getaffinity(0) - server


def test_jobs_must_have_one() -> None:
    with pytest.raises(BadInputError, match="one at least is for jobs"):
        keep_for_server(len(os.sched_getaffinity(0)))

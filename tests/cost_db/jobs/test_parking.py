"""Parked jobs hold no runner, keep their place, and come back when they are called or at their time."""

from __future__ import annotations

import time

import pytest

from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import StaleAttemptError
from collage.cost_db.jobs.jobs import JobStore


@pytest.fixture
def jobs(database: CostDatabase) -> JobStore:
    return JobStore(database)


def test_a_parked_job_is_passed_over_until_it_is_called(jobs: JobStore) -> None:
    first, second = (jobs.create({"n": n}, "ann") for n in range(2))
    taken = jobs.next_queued("worker", 60.0)
    assert taken is not None and taken.id == first.id
    jobs.park(first.id, taken.attempt, 300.0, "no worker has it")
    (parked,) = jobs.parked()
    assert (parked.state, parked.attempt, parked.started_at) == ("queued", 0, None)
    assert parked.progress is not None and parked.progress["message"] == "no worker has it"
    assert jobs.events(first.id)[-1].data == {"state": "queued", "reason": "no worker has it"}
    assert jobs.places_in_queue([first.id, second.id]) == {second.id: 1}
    with pytest.raises(StaleAttemptError):
        jobs.park(first.id, taken.attempt, 300.0, "again")
    other = jobs.next_queued("worker", 60.0)
    assert other is not None and other.id == second.id
    assert jobs.next_queued("worker", 60.0) is None
    assert jobs.requeue_expired() == ()
    jobs.unpark(first.id)
    assert jobs.parked() == ()
    again = jobs.next_queued("worker", 60.0)
    assert again is not None and (again.id, again.attempt, again.parked_until) == (first.id, 1, None)


@pytest.mark.slow
def test_a_parked_job_comes_back_at_its_time_and_can_be_cancelled(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    taken = jobs.next_queued("worker", 60.0)
    assert taken is not None
    jobs.park(job.id, taken.attempt, 0.2, "nobody")
    assert jobs.next_queued("worker", 60.0) is None
    time.sleep(0.3)
    assert jobs.parked() == ()
    late = jobs.next_queued("worker", 60.0)
    assert late is not None and late.id == job.id
    jobs.park(job.id, late.attempt, 300.0, "nobody")
    assert jobs.request_cancel(job.id).state == "cancelled"
    assert jobs.parked() == () and jobs.next_queued("worker", 60.0) is None

"""Jobs, their events and their queue, on both engines."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter

import pytest

from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import IdempotencyConflictError, QuotaExceededError, StaleAttemptError
from collage.cost_db.jobs import idempotency
from collage.cost_db.jobs.job import Job, JobResult
from collage.cost_db.jobs.jobs import JobStore
from collage.cost_db.stored_models import BlobRegister
from collage.cost_db.tokens import Quotas, TokenStore
from collage.partitioner.errors import BadInputError

BLOB = "ef" * 32


@pytest.fixture
def jobs(database: CostDatabase) -> JobStore:
    return JobStore(database)


def _take(jobs: JobStore, lease_s: float = 60.0) -> Job:
    job = jobs.next_queued("worker", lease_s)
    assert job is not None
    return job


def test_a_job_lives_from_queued_to_done(database: CostDatabase, jobs: JobStore) -> None:
    BlobRegister(database).add(BLOB, 10, "application/octet-stream")
    created = jobs.create({"targets": ["openvino"], "é": None}, "ann", model_sha256=BLOB)
    assert (created.state, created.attempt, created.model_sha256) == ("queued", 0, BLOB)
    assert created.spec == {"targets": ["openvino"], "é": None}
    assert jobs.get(created.id) == created
    running = _take(jobs)
    assert (running.id, running.state, running.worker, running.attempt) == (
        created.id,
        "running",
        "worker",
        1,
    )
    assert running.started_at is not None and not jobs.places_in_queue([created.id])
    seq = jobs.append_event(created.id, "progress", {"done": 1}, attempt=1, progress={"share": 0.5})
    assert seq == 3
    done = jobs.finish(created.id, "done", attempt=1, result=JobResult(artifact=BLOB, plan=BLOB))
    assert (done.state, done.result, done.reason) == ("done", JobResult(BLOB, None, BLOB), None)
    assert done.finished_at is not None and done.progress == {"share": 0.5}
    assert [(event.seq, event.kind, event.data.get("state")) for event in jobs.events(created.id)] == [
        (1, "state", "queued"),
        (2, "state", "running"),
        (3, "progress", None),
        (4, "state", "done"),
    ]
    assert [event.seq for event in jobs.events(created.id, after_seq=2, limit=1)] == [3]
    assert len(jobs.events(done.id)) == 4
    assert jobs.count() == {"done": 1}


def test_nothing_is_there_at_first(jobs: JobStore) -> None:
    assert jobs.next_queued("worker", 60.0) is None
    assert jobs.get("nothing") is None
    assert not jobs.places_in_queue(["nothing"])
    assert jobs.is_cancel_requested("nothing") is False
    assert jobs.list().items == () and jobs.events("nothing") == ()
    for call in (
        lambda: jobs.request_cancel("nothing"),
        lambda: jobs.append_event("nothing", "x", {}),
        lambda: jobs.finish("nothing", "failed"),
    ):
        with pytest.raises(BadInputError, match="no job"):
            call()


def test_a_job_ends_once(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    with pytest.raises(BadInputError, match="cannot end as 'running'"):
        jobs.finish(job.id, "running")
    _take(jobs)
    failed = jobs.finish(job.id, "failed", attempt=1, reason="no plan")
    assert (failed.state, failed.reason) == ("failed", "no plan")
    with pytest.raises(StaleAttemptError):
        jobs.finish(job.id, "done")
    assert jobs.get(job.id) == failed


def test_a_result_that_is_not_registered_is_refused(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    with pytest.raises(BadInputError, match="no file with SHA-256 efef"):
        jobs.finish(job.id, "done", result=JobResult(report=BLOB))
    with pytest.raises(BadInputError, match="no file with SHA-256 efef"):
        jobs.create({}, "ann", model_sha256=BLOB)


def test_pages_of_jobs_by_owner_and_state(jobs: JobStore) -> None:
    ann = [jobs.create({"n": n}, "ann").id for n in range(5)]
    bob = [jobs.create({"n": n}, "bob").id for n in range(2)]
    first = jobs.list(limit=3)
    assert [job.id for job in first.items] == [bob[1], bob[0], ann[4]]
    second = jobs.list(after=first.next, limit=4)
    assert [job.id for job in second.items] == ann[3::-1] and second.next is None
    assert [job.id for job in jobs.list(owner="bob").items] == bob[::-1]
    jobs.request_cancel(ann[2])
    assert [job.id for job in jobs.list(owner="ann", state="cancelled").items] == [ann[2]]
    assert jobs.count() == {"queued": 6, "cancelled": 1}


def test_owners_take_turns_and_every_job_knows_its_place(jobs: JobStore) -> None:
    ann = [jobs.create({}, "ann").id for _ in range(4)]
    bob = [jobs.create({}, "bob").id for _ in range(2)]
    eve = [jobs.create({}, "eve").id]
    expected = [ann[0], bob[0], eve[0], ann[1], bob[1], ann[2], ann[3]]
    places = jobs.places_in_queue(expected)
    assert [places[job] for job in expected] == [1, 2, 3, 4, 5, 6, 7]
    assert _take(jobs).id == ann[0]
    # Ann has had her turn, so a newcomer is before her next job.
    new = jobs.create({}, "new").id
    rest = [bob[0], eve[0], new, ann[1], bob[1], ann[2], ann[3]]
    places = jobs.places_in_queue(rest)
    assert [places[job] for job in rest] == [1, 2, 3, 4, 5, 6, 7]
    assert [_take(jobs).id for _ in rest] == rest


def test_an_owner_at_its_limit_of_running_jobs_is_passed_over(
    database: CostDatabase, jobs: JobStore
) -> None:
    token, _ = TokenStore(database).create("ann", ["tune"], quotas=Quotas(running_jobs=1))
    mine = [jobs.create({}, token.id).id for _ in range(2)]
    other = jobs.create({}, "bob").id
    assert [_take(jobs).id, _take(jobs).id] == [mine[0], other]
    assert jobs.next_queued("worker", 60.0) is None
    jobs.finish(mine[0], "done", attempt=1)
    assert _take(jobs).id == mine[1]


def test_an_owner_has_only_so_many_unfinished_jobs(database: CostDatabase, jobs: JobStore) -> None:
    token, _ = TokenStore(database).create("ann", ["tune"], quotas=Quotas(active_jobs=2))
    first = jobs.create({}, token.id, "key").id
    jobs.create({}, token.id)
    with pytest.raises(QuotaExceededError) as caught:
        jobs.create({}, token.id)
    assert (caught.value.quota, caught.value.limit) == ("active_jobs", 2)
    assert jobs.create({}, token.id, "key").id == first  # a repeated request is no new job
    jobs.create({}, "bob")
    jobs.request_cancel(first)
    jobs.create({}, token.id)


def test_many_creators_at_once_keep_to_the_limit(database: CostDatabase, jobs: JobStore) -> None:
    token, _ = TokenStore(database).create("ann", ["tune"], quotas=Quotas(active_jobs=3))
    refused: list[QuotaExceededError] = []

    def create() -> None:
        try:
            jobs.create({}, token.id)
        except QuotaExceededError as error:
            refused.append(error)

    _at_once(create, 8)
    assert len(refused) == 5 and jobs.count() == {"queued": 3}


def test_many_workers_at_once_never_take_one_job_twice(jobs: JobStore) -> None:
    for number in range(12):
        jobs.create({}, f"owner {number % 3}")
    taken: Counter[str] = Counter()

    def work() -> None:
        while (job := jobs.next_queued("worker", 60.0)) is not None:
            taken[job.id] += 1

    _at_once(work, 6)
    assert len(taken) == 12 and set(taken.values()) == {1}


def test_many_writers_at_once_number_events_without_gaps(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    _at_once(lambda: [jobs.append_event(job.id, "x", {}) for _ in range(5)], 6)
    assert [event.seq for event in jobs.events(job.id)] == list(range(1, 32))


def test_a_dead_workers_job_goes_back_to_its_old_place(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    later = jobs.create({}, "ann")
    _take(jobs, lease_s=0.0)
    (changed,) = jobs.requeue_expired()
    assert (changed.id, changed.state, changed.attempt) == (job.id, "queued", 1)
    assert jobs.places_in_queue([job.id, later.id]) == {job.id: 1, later.id: 2}
    assert _take(jobs).attempt == 2
    # What the first worker still says, is refused.
    assert jobs.renew_lease(job.id, 1, 60.0) is False
    for call in (
        lambda: jobs.append_event(job.id, "x", {}, attempt=1),
        lambda: jobs.finish(job.id, "done", attempt=1),
    ):
        with pytest.raises(StaleAttemptError) as caught:
            call()
        assert (caught.value.job_id, caught.value.attempt) == (job.id, 1)
    assert jobs.finish(job.id, "done", attempt=2).state == "done"


def test_a_living_workers_job_is_left_to_it(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    _take(jobs, lease_s=0.05)
    assert jobs.renew_lease(job.id, 1, 60.0) is True
    time.sleep(0.1)
    assert jobs.requeue_expired() == ()


def test_a_job_that_kills_its_workers_fails_in_the_end(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    for _ in range(3):
        _take(jobs, lease_s=0.0)
        (changed,) = jobs.requeue_expired(max_attempts=3)
    assert changed.state == "failed"
    assert changed.reason == "its worker was lost in 3 attempts, the last of them worker"
    assert jobs.get(job.id) == changed


def test_a_job_that_is_given_back_has_lost_no_attempt(jobs: JobStore) -> None:
    job, later = jobs.create({}, "ann"), jobs.create({}, "ann")
    for _ in range(4):
        taken = _take(jobs)
        assert (taken.id, taken.attempt) == (job.id, 1)
        jobs.give_back(job.id, 1)
        assert jobs.requeue_expired() == ()
    queued = jobs.get(job.id)
    assert queued is not None and (queued.state, queued.attempt) == ("queued", 0)
    assert jobs.places_in_queue([job.id, later.id]) == {job.id: 1, later.id: 2}
    assert [event.data["state"] for event in jobs.events(job.id)][-2:] == ["running", "queued"]
    with pytest.raises(StaleAttemptError):
        jobs.give_back(job.id, 1)


def test_a_cancelled_job_that_is_given_back_ends(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    _take(jobs)
    jobs.request_cancel(job.id)
    jobs.give_back(job.id, 1)
    ended = jobs.get(job.id)
    assert ended is not None and ended.state == "cancelled" and ended.finished_at is not None
    assert jobs.next_queued("worker", 60.0) is None


def test_a_queued_job_is_cancelled_at_once(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    assert jobs.request_cancel(job.id).state == "cancelled"
    assert jobs.next_queued("worker", 60.0) is None
    assert [event.data["state"] for event in jobs.events(job.id)] == ["queued", "cancelled"]


def test_a_running_job_is_asked_to_stop(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    _take(jobs)
    assert not jobs.is_cancel_requested(job.id)
    assert jobs.request_cancel(job.id).state == "running"
    assert jobs.is_cancel_requested(job.id)
    ended = jobs.finish(job.id, "cancelled", attempt=1, reason="cancelled by ann")
    assert jobs.request_cancel(job.id) == ended


def test_a_cancelled_job_whose_worker_died_is_not_run_again(jobs: JobStore) -> None:
    job = jobs.create({}, "ann")
    _take(jobs, lease_s=0.0)
    jobs.request_cancel(job.id)
    (changed,) = jobs.requeue_expired()
    assert (changed.id, changed.state) == (job.id, "cancelled")


def test_same_key_is_one_job(database: CostDatabase, jobs: JobStore) -> None:
    job = jobs.create({"a": 1}, "ann", "key")
    assert jobs.create({"a": 1}, "ann", "key") == job
    assert jobs.create({"a": 1}, "bob", "key").id != job.id
    with pytest.raises(IdempotencyConflictError, match="'key' was already used"):
        jobs.create({"a": 2}, "ann", "key")
    with pytest.raises(BadInputError, match="idempotency key is longer"):
        jobs.create({}, "ann", "k" * 300)

    request = hashlib.sha256(b'None {"a": 1}').hexdigest()

    def find(key: str) -> str | None:
        return database.connections.read(
            lambda connection: idempotency.find(connection, "ann", key, request)
        )

    assert find("key") == job.id
    assert find("other") is None


def test_same_key_from_many_at_once_is_one_job(jobs: JobStore) -> None:
    made: list[str] = []
    _at_once(lambda: made.append(jobs.create({"a": 1}, "ann", "key").id), 6)
    assert len(made) == 6 and len(set(made)) == 1


def test_a_spec_must_be_json(jobs: JobStore) -> None:
    with pytest.raises(BadInputError, match=r"the job\.a is nan"):
        jobs.create({"a": float("nan")}, "ann")


def _at_once(work: object, count: int) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            assert callable(work)
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

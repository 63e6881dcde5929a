"""The register of files and models, on both engines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from collage.cost_db.costs.row import now
from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import QuotaExceededError
from collage.cost_db.jobs.job import JobResult
from collage.cost_db.jobs.jobs import JobStore
from collage.cost_db.stored_models import BlobRegister, ModelStore
from collage.cost_db.tokens import Quotas, TokenStore
from collage.partitioner.errors import BadInputError

A, B, C = ("aa" * 32, "bb" * 32, "cc" * 32)


@pytest.fixture
def blobs(database: CostDatabase) -> BlobRegister:
    blobs = BlobRegister(database)
    for sha256 in (A, B, C):
        blobs.add(sha256, 6_000_000_000, "application/octet-stream")
    return blobs


def test_file_registered_twice_is_one_row_and_counts_as_new(blobs: BlobRegister) -> None:
    first = blobs.get(A)
    assert first is not None and first.size_bytes == 6_000_000_000
    again = blobs.add(A, 6_000_000_000, "application/octet-stream")
    assert again.created_at > first.created_at and blobs.get(A) == again
    assert blobs.get("nothing") is None


def test_owners_have_their_own_models(database: CostDatabase, blobs: BlobRegister) -> None:
    models = ModelStore(database)
    ann = models.add(A, "ann", "resnet")
    assert (ann.sha256, ann.owner, ann.name, ann.size_bytes) == (A, "ann", "resnet", 6_000_000_000)
    assert models.add(A, "ann", "another name") == ann
    bob = models.add(A, "bob", "mine")
    more = models.add(B, "ann", "bert")
    assert models.get(A, "bob") == bob and models.get(A) == ann and models.get(C) is None
    page = models.list(owner="ann", limit=1)
    assert page.items == (more,)
    assert models.list(owner="ann", after=page.next).items == (ann,)
    assert models.list().items == (more, bob, ann)
    assert models.remove(A, "ann") == () and models.remove(A, "ann") is None
    assert models.get(A) == bob
    assert models.remove(A, "bob") == (A,) and blobs.get(A) is None


def test_a_model_needs_its_file(database: CostDatabase) -> None:
    with pytest.raises(BadInputError, match="upload it first"):
        ModelStore(database).add(A, "ann", "resnet")


def test_models_are_within_the_owners_quota(database: CostDatabase, blobs: BlobRegister) -> None:
    token, _ = TokenStore(database).create("ann", ["tune"], quotas=Quotas(stored_bytes=13_000_000_000))
    models = ModelStore(database)
    models.add(A, token.id, "a")
    models.add(B, token.id, "b")
    with pytest.raises(QuotaExceededError, match="stored_bytes"):
        models.add(C, token.id, "c")
    models.add(A, token.id, "a")  # is there already
    models.remove(A, token.id)
    models.add(C, token.id, "c")


def test_what_was_added_in_vain_is_taken_back(database: CostDatabase, blobs: BlobRegister) -> None:
    new = "dd" * 32
    old = blobs.add(A, 1, "application/json")
    assert not old.is_new and blobs.take_back([old]) == ()
    mine = blobs.add(new, 1, "application/json")
    blobs.add(new, 1, "application/json")  # by another request
    assert blobs.take_back([mine]) == ()
    assert blobs.drop_unused(before=now()) == (A, B, C, new)
    mine = blobs.add(new, 1, "application/json")
    ModelStore(database).add(new, "ann", "a")
    assert blobs.take_back([mine]) == ()
    assert ModelStore(database).remove(new, "ann") == (new,)
    mine = blobs.add(new, 1, "application/json")
    assert mine.is_new and blobs.take_back([mine]) == (new,) and blobs.get(new) is None


def test_only_files_that_nothing_refers_to_are_dropped(
    database: CostDatabase, blobs: BlobRegister
) -> None:
    for number in range(5):
        blobs.add(f"{number:064}", 1, "application/json")
    used = [f"{number:064}" for number in range(4)]
    jobs = JobStore(database)
    job = jobs.create({}, "ann", model_sha256=used[0])
    jobs.finish(job.id, "done", result=JobResult(*used[1:]))
    ModelStore(database).add(A, "ann", "a")
    assert blobs.drop_unused(before=now() - timedelta(hours=1)) == ()
    assert blobs.drop_unused(before=now(), limit=2) == (f"{4:064}", B)
    assert blobs.drop_unused(before=now()) == (C,)
    assert blobs.drop_unused(before=now()) == ()
    assert all(blobs.get(sha256) for sha256 in [A, *used])

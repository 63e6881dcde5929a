"""Files over HTTP: HEAD, ranges, and answers that nothing has changed."""

from __future__ import annotations

import pytest

from collage.cost_db.jobs.job import JobResult
from tests.service.conftest import RunningServer, post_job

DATA = bytes(range(256)) * 12_000  # more than one piece


@pytest.fixture(scope="module")
def artifact(shared_server: RunningServer) -> str:
    """The path of a done job's artifact."""
    job = post_job(shared_server).json()["id"]
    services = shared_server.services
    blob = services.files.keep_bytes(DATA)
    services.register.add(blob.sha256, blob.size_bytes, "application/octet-stream")
    result = JobResult(artifact=blob.sha256, report=blob.sha256, plan=blob.sha256)
    services.jobs.finish(job, "done", result=result)
    return f"/v1/jobs/{job}/artifact"


@pytest.mark.slow
def test_head_has_the_headers_of_get(shared_server: RunningServer, artifact: str) -> None:
    for path in (artifact, artifact.removesuffix("/artifact"), "/v1/jobs", "/", "/healthz"):
        whole, head = shared_server.http.get(path), shared_server.http.head(path)
        assert head.status_code == whole.status_code == 200 and not head.content
        for name in ("content-length", "content-type", "etag"):
            assert head.headers.get(name) == whole.headers.get(name)
    events = shared_server.http.head(
        f"/v1/jobs/{post_job(shared_server).json()['id']}/events", timeout=5
    )
    assert events.headers["content-type"].startswith("text/event-stream")
    assert shared_server.http.head("/v1/jobs/nonsense").status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-1999999", 100, 2_000_000),
        ("bytes=3071000-", 3_071_000, len(DATA)),
        ("bytes=-72", len(DATA) - 72, len(DATA)),
        ("bytes=10-99999999", 10, len(DATA)),
        ("bytes=-99999999", 0, len(DATA)),
    ],
)
def test_a_range_is_part_of_the_file(
    shared_server: RunningServer, artifact: str, asked: str, begin: int, end: int
) -> None:
    part = shared_server.http.get(artifact, headers={"Range": asked})
    assert part.status_code == 206 and part.content == DATA[begin:end]
    assert part.headers["Content-Range"] == f"bytes {begin}-{end - 1}/{len(DATA)}"


@pytest.mark.parametrize("asked", ["bytes=3072000-", "bytes=-0", f"bytes={10**17}-"])
def test_a_range_beyond_the_file_is_refused(
    shared_server: RunningServer, artifact: str, asked: str
) -> None:
    refused = shared_server.http.get(artifact, headers={"Range": asked})
    assert refused.status_code == 416 and refused.headers["Content-Range"] == f"bytes */{len(DATA)}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        *("bytes=0-1,4-5", "lines=1-2", "bytes=a-b", "bytes=9-8", "bytes=-"),
        *(f"bytes={'9' * 5000}-", f"bytes=0-{'9' * 5000}", f"bytes=-{'9' * 5000}"),
    ],
)
def test_other_ranges_give_the_whole_file(
    shared_server: RunningServer, artifact: str, asked: str
) -> None:
    whole = shared_server.http.get(artifact, headers={"Range": asked})
    assert whole.status_code == 200 and whole.content == DATA


def test_a_file_that_is_known_is_not_sent_again(shared_server: RunningServer, artifact: str) -> None:
    http = shared_server.http
    tag = http.head(artifact).headers["ETag"]
    for tags in (tag, f'"other", W/{tag}', "*"):
        same = http.get(artifact, headers={"If-None-Match": tags})
        assert same.status_code == 304 and not same.content and same.headers["ETag"] == tag
    assert http.get(artifact, headers={"If-None-Match": '"other"'}).content == DATA
    part = http.get(artifact, headers={"Range": "bytes=0-3", "If-Range": tag})
    assert part.content == DATA[:4]
    changed = http.get(artifact, headers={"Range": "bytes=0-3", "If-Range": '"other"'})
    assert changed.status_code == 200 and changed.content == DATA

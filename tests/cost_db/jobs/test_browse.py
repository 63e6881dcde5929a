"""Jobs searched, sorted and counted."""

from __future__ import annotations

from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.browse import JOB_ORDERS, JobBrowser, JobSearch
from collage.cost_db.jobs.jobs import JobStore


def test_jobs_are_searched_sorted_and_counted(database: CostDatabase) -> None:
    store, browser = JobStore(database), JobBrowser(database)
    made = [
        store.create({"name": name, "targets": [], "options": {}}, owner)
        for name, owner in [("Beta_1.onnx", "a"), ("alpha.onnx", "b"), ("beta.onnx", "a")]
    ]
    store.finish(made[0].id, "failed", reason="no")

    def names(wanted: JobSearch, order: str = "newest", first: int = 0, limit: int = 10) -> list[str]:
        return [job.spec["name"] for job in browser.page(wanted, order, first, limit)]  # type: ignore[arg-type]

    assert names(JobSearch(), "oldest") == ["Beta_1.onnx", "alpha.onnx", "beta.onnx"]
    assert names(JobSearch(), "name") == ["alpha.onnx", "beta.onnx", "Beta_1.onnx"]
    assert names(JobSearch(text="beta"), "oldest") == ["Beta_1.onnx", "beta.onnx"]
    assert names(JobSearch(text="_")) == ["Beta_1.onnx"], "a sign of LIKE is only itself"
    assert names(JobSearch(state="failed", owner="a")) == ["Beta_1.onnx"]
    assert names(JobSearch(), "oldest", first=1, limit=1) == ["alpha.onnx"]
    assert browser.count_by_state(JobSearch(text="beta", state="failed")) == {"failed": 1, "queued": 1}
    for order in JOB_ORDERS:
        assert len(names(JobSearch(), order)) == 3

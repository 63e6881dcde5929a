"""A job's process that ends before it reads its request."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.service.jobs.job_child import JobChild
from collage.service.jobs.job_process import Request
from collage.service.jobs.warm_process import Template, WarmProcess


def test_job_child_killed_before_its_request_counts_as_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "killed"
    program.write_text("#!/bin/sh\nkill -9 $$\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr("collage.service.jobs.warm_process.sys.executable", str(program))
    # More than a pipe's buffer, so that writing it fails.
    request = Request("model.onnx", ["onnxruntime"], {"plan": "x" * 1_000_000}, "", str(tmp_path))
    template = Template()
    with JobChild(request, WarmProcess(tmp_path / "output.txt", template)) as child:
        message = child.next_message(10.0)
    template.close()
    assert message is not None and "SIGKILL" in message["error"]["reason"]

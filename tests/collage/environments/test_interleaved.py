"""Plans timed in two environments in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.backends.contract import SubModel
from collage.backends.numerics.tensor_files import write_samples
from collage.environments.environment import environment_of, this_environment
from collage.environments.interleaved import Interleaver
from collage.environments.work import BuildRequest, Entry, Environment, Work, WorkStep
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec
from collage.runner import Runner
from tests.backends import planted
from tests.collage.environments.wrappers import interpreter

pytestmark = pytest.mark.slow
TEXT = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[8] x) => (float[8] y) { [n0] a = Relu(x)  [n1] y = Add(a, a) }"""


def work(folder: Path, target: str) -> Work:
    """The plan of one partition."""
    onnx.save(onnx.parser.parse_model(TEXT), folder / "m.onnx")
    x = np.arange(8, dtype=np.float32) - 4
    write_samples(folder / "x.npz", [{"x": x}])
    write_samples(folder / "y.npz", [{"y": 2 * np.maximum(x, 0)}])
    specs = (TensorSpec("x", "float32", (8,)),), (TensorSpec("y", "float32", (8,)),)
    step = WorkStep(SubModel(folder / "m.onnx", *specs), target)
    return Work((step,), specs[0], ("y",), folder / "x.npz", folder / "y.npz")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = planted.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def environments(tmp_path: Path, site: Path, percent: int) -> tuple[Environment, Environment]:
    python = interpreter(tmp_path, f"slower-{percent}", {planted.ENVIRONMENT: str(percent)}, [site])
    return this_environment(Runner()), environment_of(python)


def request(tmp_path: Path, site: Path, target: str, percent: int = 50) -> BuildRequest:
    return BuildRequest(
        environments(tmp_path, site, percent),
        (work(tmp_path, target),),
        (Entry(0, 0), Entry(1, 0)),
        threads=1,
        rounds=6,
        block_s=0.02,
        timeout_s=60,
    )


def test_another_environment_is_timed_in_turn(tmp_path: Path, site: Path) -> None:
    timed = Interleaver(request(tmp_path, site, "planted -slow=n1 -slow_us=4000", 200), Runner())
    timed.run(3)
    assert timed.failure(0) is None and timed.failure(1) is None
    assert timed.error(1) == 0
    ratio = timed.ratio(1, 0)
    assert 1.5 < ratio.ratio < 6
    assert len(timed.builds[0].yardstick_us) == 6


def test_versions_of_the_other_environment_are_known(tmp_path: Path, site: Path) -> None:
    here, there = environments(tmp_path, site, 7)
    assert (here.versions["planted"], there.versions["planted"]) == ("1.0", "1.7")
    assert there.python is not None and "onnxruntime" in there.versions


def test_a_crash_in_one_environment_leaves_the_other(tmp_path: Path, site: Path) -> None:
    asked = request(tmp_path, site, "planted")
    crashing = work(tmp_path, "planted -fault=crash -at=n1")
    asked = replace(asked, works=(asked.works[0], crashing), entries=(Entry(0, 0), Entry(1, 1)))
    timed = Interleaver(asked, Runner())
    timed.run(1)
    assert timed.failure(0) is None and len(timed.builds[0].entries[0].samples_us) == 6
    assert timed.failure(1) == "crash: signal 6"


def test_what_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("nothing", encoding="utf-8")
    with pytest.raises(BadInputError, match="no Python interpreter that runs"):
        environment_of(tmp_path / "python")


def test_an_environment_without_what_is_needed_is_told_what_to_install(tmp_path: Path) -> None:
    import subprocess
    import sys

    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=120
    )
    with pytest.raises(BadInputError, match="-m pip install collage-tuner"):
        environment_of(tmp_path / "bare" / "bin" / "python")

"""Who only loads an artifact needs numpy, onnx and the runtimes, and nothing of the tuner."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.load_time import make_artifact
from collage.extras import how_to_install
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

ROOT = Path(__file__).resolve().parents[3]
# What `pip install collage-tuner` leaves out.
ABSENT = (
    *("onnxscript", "sqlalchemy", "pydantic", "optuna", "httpx", "rich", "typer", "fastapi", "highspy"),
    *("psutil", "yaml", "jsonschema", "orjson", "alembic", "fsspec", "structlog"),
)
BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slim")
    text = "agraph (float[8] x) => (float[8] y) { h = Exp(x) y = Neg(h) }"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}'),
        folder / "source.onnx",
    )
    normalize(folder / "source.onnx", folder, {})
    model = Model.open(folder / "model.onnx")
    parts = (Candidate(1, Target.parse("onnxruntime")), Candidate(2, Target.parse("openvino")))
    return make_artifact(model, Plan(parts), folder / "small.collage.onnx")


@pytest.mark.slow
def test_load_is_imported_without_the_tuner() -> None:
    code = (
        "import sys, collage; collage.load; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = _python(code)
    loaded = set(done.stdout.split())
    assert not loaded & {*ABSENT, "onnx_ir", "sympy", "onnx", "onnxruntime", "openvino"}, done.stderr


@pytest.mark.slow
def test_artifact_runs_where_the_tuner_is_not_installed(artifact: Path, tmp_path: Path) -> None:
    code = BLOCK + (
        "import collage, numpy as np\n"
        "with collage.load(sys.argv[1], cache_dir=sys.argv[2]) as session:\n"
        "    print(session.run(None, {'x': np.ones(8, 'f')})[0][0], 'onnx_ir' in sys.modules)"
    )
    first, second = (_python(code, str(artifact), str(tmp_path / "cache")) for _ in range(2))
    for done in (first, second):
        assert done.returncode == 0, done.stderr
        assert np.isclose(float(done.stdout.split()[0]), -np.e)
    # What was unpacked before is not read from ONNX again.
    assert second.stdout.split()[1] == "False"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import collage; collage.tune", "pip install 'collage-tuner[tune]'"),
        ("from collage import Client", "pip install 'collage-tuner[tune]'"),
        ("from collage.__main__ import main; main()", "pip install 'collage-tuner[tune]'"),
    ],
)
def test_what_needs_an_extra_says_which_line_installs_it(code: str, line: str) -> None:
    done = _python(BLOCK + code)
    assert done.returncode != 0
    assert line in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "command", "extra"),
    [
        (("fastapi", "pydantic_settings"), "serve", "serve"),
        (("typer",), "serve", "serve"),
        (("typer",), "serve-model", "serve"),
        (("typer",), "worker", "workers"),
        (("typer",), "package", "tune"),
    ],
)
def test_one_line_installs_all_that_a_command_needs(
    absent: tuple[str, ...], command: str, extra: str
) -> None:
    block = BLOCK.replace(repr(ABSENT), repr(absent))
    words = f"sys.argv = ['collage', '--verbose', {command!r}]\n"
    done = _python(block + words + "from collage.__main__ import main\nmain()")
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"pip install 'collage-tuner[{extra}]'")


def test_each_package_of_an_extra_is_known_by_its_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules: dict[str, set[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(_plain(distribution), set()).add(module)
    for extra in ("tune", "serve", "workers"):
        for requirement in project["optional-dependencies"][extra]:
            name = _plain(re.split(r"[\[>=;]", requirement)[0])
            if name == "collage-tuner":
                continue
            lines = {how_to_install(module) for module in modules[name]}
            assert f"pip install 'collage-tuner[{extra}]'" in lines, name
    needed = {_plain(re.split(r"[\[>=;]", text)[0]) for text in project["dependencies"]}
    assert needed == {"numpy", "ml-dtypes", "onnx", "onnx-ir"}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

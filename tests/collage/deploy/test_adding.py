"""A package in place: variants that are added, files that are others', and folders of every kind."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.deploy import runner
from collage.deploy.package import PLAIN, _put, _version, write_package
from collage.partitioner.errors import BadInputError
from tests.collage.deploy.packages import described, edit, sign
from tests.collage.serving.conftest import ROWS, artifact_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artifact_of(ROWS.format(batch=1), tmp_path_factory.mktemp("artifact"), "rows")


@pytest.fixture(scope="module")
def written(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(artifact, tmp_path_factory.mktemp("package") / "rows", 1).folder


@pytest.fixture
def package(written: Path, tmp_path: Path) -> Path:
    """A package that the test may change."""
    return shutil.copytree(written, tmp_path / "package")


def _model(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["additional_metadata"][runner.NAMESPACE]
    return found


def _variants(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["components"]["model"]["variants"]
    return found


def _import(package: Path) -> None:
    """Import the package's runner as a user does, which leaves its compiled form in the folder."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import runner; runner.Session(sys.argv[1])"
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    words = [sys.executable, "-c", code, package]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_adding_after_an_import_leaves_a_package_that_is_whole(artifact: Path, package: Path) -> None:
    _import(package)
    (package / "notes.txt").write_text("mine", encoding="utf-8")
    assert list(package.glob("__pycache__/*.pyc"))
    write_package(artifact, package, 1)
    for file in package.glob("__pycache__/*.pyc"):  # as another version of Python leaves them
        file.write_bytes(b"")
    _import(package)
    assert (package / "notes.txt").read_text(encoding="utf-8") == "mine"
    sums = (package / runner.SUMS).read_text(encoding="utf-8")
    assert "pycache" not in sums and "notes" not in sums and "runner.py" in sums
    assert not list(package.glob(".*"))


def test_changed_package_gets_no_variant_and_stays_as_it_is(artifact: Path, package: Path) -> None:
    model = package / PLAIN / "model.onnx"
    model.write_bytes(b"changed")
    before = (package / runner.SUMS).read_bytes()
    with pytest.raises(BadInputError, match=r"plain/model.onnx was changed; .*or give a new folder"):
        write_package(artifact, package, 1)
    assert model.read_bytes() == b"changed" and (package / runner.SUMS).read_bytes() == before


def test_files_that_a_variant_has_no_longer_are_removed(artifact: Path, package: Path) -> None:
    own = next(iter(_variants(described(package))))
    old = package / own / "partition-7" / "model.onnx"
    old.parent.mkdir()
    old.write_bytes(b"old")
    outside = package.parent / "outside.txt"
    outside.write_bytes(b"mine")
    sign(package)
    with (package / runner.SUMS).open("a", encoding="utf-8") as sums:
        sums.write(f"{hashlib.sha256(b'mine').hexdigest()}  {own}/../../outside.txt\n")
    write_package(artifact, package, 1)
    assert not old.exists() and outside.read_bytes() == b"mine"
    runner.Session(package).close()


def test_package_by_another_version_and_tolerance_gets_a_variant(artifact: Path, package: Path) -> None:
    edit(package, lambda m: _model(m).update(made_by="collage-tuner 0.0", tolerance=0.5))
    write_package(artifact, package, 1)
    found = _model(described(package))
    assert found["made_by"] != "collage-tuner 0.0" and found["tolerance"] == 0.5
    runner.Session(package).close()
    edit(package, lambda m: _model(m).update(tolerance=1e-9))
    write_package(artifact, package, 1)
    assert _model(described(package))["tolerance"] > 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_sha256": "0"}, "is a package of another model; give a new folder"),
        (
            {"outputs": [{"name": "y", "dtype": "float32", "shape": [8, 4]}]},
            r"is a package with other outputs, .*8, 4.* and not .*1, 4.*; give a new folder",
        ),
    ],
)
def test_package_of_another_model_is_refused(
    change: dict[str, Any], message: str, artifact: Path, package: Path
) -> None:
    edit(package, lambda m: _model(m).update(change))
    with pytest.raises(BadInputError, match=message):
        write_package(artifact, package, 1)


def test_requirements_have_the_newest_versions_and_those_of_others(
    artifact: Path, package: Path
) -> None:
    def age(manifest: dict[str, Any]) -> None:
        variants = _variants(manifest)
        first, plain = variants
        shutil.move(package / first, package / "arm64-other")
        plan = variants[first]["executor_info"][runner.NAMESPACE]
        plan["requirements"] = {"onnxruntime": "0.1", "openvino": "0.2"}
        other = {**variants[first], "variant_directory": "arm64-other"}
        manifest["components"]["model"]["variants"] = {"arm64-other": other, plain: variants[plain]}

    edit(package, age)
    found = write_package(artifact, package, 1)
    lines = (package / "requirements.txt").read_text(encoding="utf-8").split()
    assert lines == [
        f"numpy=={np.__version__}",
        f"onnxruntime=={_version('onnxruntime')}",
        "openvino==0.2",
    ]
    with runner.Session(package) as session:
        assert session.variant == found.variant


def test_this_folder_takes_a_package(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount point it can neither be removed nor renamed."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    kept = here.stat().st_ino
    for _ in range(2):
        write_package(artifact, Path(), 1)
        assert here.stat().st_ino == kept and not list(here.glob(".*"))
        with runner.Session(here) as session:
            assert session.variant != PLAIN


def test_what_an_interrupted_write_left_is_no_obstacle(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / ".unfinished" / "plain").mkdir(parents=True)
    write_package(artifact, tmp_path, 1)
    runner.Session(tmp_path).close()
    assert not list(tmp_path.glob(".*"))


def test_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "package"):
        with pytest.raises(BadInputError, match="cannot be written to; give another folder"):
            write_package(tmp_path / "no artifact", place)
    (tmp_path / "new").mkdir()
    with pytest.raises(BadInputError, match=r"/proc/none cannot be written to: .*; make room there"):
        _put(tmp_path / "new", Path("/proc/none"), [])


def test_version_of_a_runtime_is_that_of_its_build_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "made_up_runtime_gpu-1.5.dist-info"
    about.mkdir()
    text = "Metadata-Version: 2.1\nName: made-up-runtime-gpu\nVersion: 1.5\n"
    (about / "METADATA").write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match="pip install made-up-runtime"):
        _version("made-up-runtime")
    monkeypatch.syspath_prepend(tmp_path)
    assert _version("made-up-runtime") == "1.5"

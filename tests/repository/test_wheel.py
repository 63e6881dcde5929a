"""A wheel holds one package, and works where a user's own folders have the names of its sub-packages."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.conftest import small_model
from tests.service.system.test_docker import COPIED

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("service", "partitioner", "backends", "cost_db")

pytestmark = pytest.mark.slow


def _build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel without network: the build tool is in this environment."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "--no-index", "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what an image is built from; beside it, leftovers of earlier builds would be packed too."""
    folder = tmp_path_factory.mktemp("source")
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build_wheel(source, tmp_path_factory.mktemp("wheel"))


def test_wheel_top_level_is_collage_alone(wheel: Path) -> None:
    top = {name.split("/")[0] for name in _names(wheel)}
    (info,) = top - {"collage"}
    assert info.endswith(".dist-info")


def test_wheel_has_every_file_of_the_packages(wheel: Path, source: Path) -> None:
    """Templates, static files, migrations and data included; nothing else."""
    folders = {name: source / name for name in LINKED}
    expected = {
        f"collage/{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file()
    }
    own = source / "collage"
    expected |= {
        path.relative_to(source).as_posix()
        for folder, links, names in os.walk(own)
        for path in (Path(folder, name) for name in (*links, *names))
        if path.is_file()
    }
    packed = {name for name in _names(wheel) if name.startswith("collage/")}
    assert packed == expected
    for suffix in (".html", ".css", ".js", ".svg", ".json", ".yaml", ".mako"):
        assert any(name.endswith(suffix) for name in packed), suffix
    assert any(name.startswith("collage/cost_db/migrations/versions/") for name in packed)


def test_sdist_gives_the_same_wheel(wheel: Path, source: Path, tmp_path: Path) -> None:
    """The links of the source become folders in it."""
    program = f"import setuptools.build_meta as build; build.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not any(member.issym() or member.islnk() for member in archive)
    assert _names(_build_wheel(sdist, tmp_path)) == _names(wheel)


class Installed:
    """The wheel in an environment of its own, beside folders that fail when they are imported."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self._bin = folder / "environment" / "bin"
        self.work_dir = folder / "work"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            "COLLAGE_RUNTIME_DIR": str(folder / "run"),
        }
        venv.create(folder / "environment", with_pip=False)
        install = [sys.executable, "-m", "pip", "--python", self._bin / "python", "install"]
        subprocess.run([*install, "--quiet", "--no-deps", "--no-index", wheel], check=True)
        # After the installation, or pip would find the editable one. Only the path is added: a `.pth` file
        # within it, such as the editable installation's, is not read.
        (packages,) = (folder / "environment" / "lib").glob("python*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        for name in LINKED:
            (self.work_dir / name).mkdir(parents=True)
            (self.work_dir / name / "__init__.py").write_text(
                f"raise RuntimeError('the folder {name} of the user is imported')\n", encoding="utf-8"
            )

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._bin / words[0], *words[1:]],
            cwd=self.work_dir,
            env={**self._environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def run(self, *words: str) -> str:
        process = self.start(*words)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return said


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def artifact(installed: Installed) -> Path:
    (installed.work_dir / "small.onnx").write_bytes(small_model())
    targets = ("--target", "onnxruntime", "--target", "openvino", "--time-limit", "3")
    installed.run("collage", "tune", "small.onnx", *targets, "--output", "tuned.onnx")
    return installed.work_dir / "tuned.onnx"


def test_installed_wheel_is_what_python_imports(installed: Installed) -> None:
    said = installed.run("python", "-c", "import collage; print(collage.__file__)")
    assert Path(said.strip()).is_relative_to(installed.work_dir.parent / "environment")


def test_installed_wheel_tunes_and_loads(installed: Installed, artifact: Path) -> None:
    program = (
        "import collage, numpy\n"
        f"session = collage.load({artifact.name!r})\n"
        "(output,) = session.run(None, {'x': numpy.ones((1, 3, 16, 16), numpy.float32)})\n"
        "assert output.shape == (1, 5), output.shape\n"
    )
    installed.run("python", "-c", program)


def test_installed_wheel_tunes_as_a_module(installed: Installed, artifact: Path) -> None:
    """`python -m` puts the current folder first."""
    installed.run("python", "-m", "collage", "tune", "small.onnx", "--plan", "tuned.onnx", "--fresh")


@pytest.fixture
def server(installed: Installed, artifact: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = installed.start("collage", "serve", COLLAGE_PORT=str(port), COLLAGE_RUNNERS="1")
    yield f"http://127.0.0.1:{port}", process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_installed_wheel_serves_until_stopped(
    server: tuple[str, subprocess.Popen[str]],
) -> None:
    url, process = server
    deadline = time.monotonic() + 60
    with httpx.Client(base_url=url, timeout=120) as http:
        while True:
            try:
                health = http.get("/healthz")
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < deadline, "no answer"
                time.sleep(0.1)
        assert health.status_code == 200, health.text
        assert http.get("/").status_code == 200
        files = {"model": ("small.onnx", small_model(seed=1))}
        form = {"targets": "onnxruntime", "options": '{"time_limit_s": 2}'}
        tuned = http.post("/v1/tune", files=files, data=form)
        assert tuned.status_code == 200, tuned.text
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM), said

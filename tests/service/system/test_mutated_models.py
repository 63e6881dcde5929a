"""Mutated models, through the real children: an answer or a reason each time, and no file that is not theirs.

200 here; 2,000 others with `pytest --hypothesis-profile=nightly tests/service/system/test_mutated_models.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings

from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.registry import target_spec
from collage.model.reference import Reference, ingest
from collage.partitioner.errors import BadInputError, ModelError
from collage.partitioner.rules.target_spec import enumerate_candidates
from collage.partitioner.target import Target
from tests import models
from tests.service.conftest import StartServer
from tests.service.system.mutations import Recipe, recipes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
_EXAMPLES = int(os.environ.get("COLLAGE_MUTATIONS", "2000" if _NIGHTLY else "200"))
_SPECS = tuple(target_spec(Target.parse(text)) for text in ("onnxruntime", "openvino"))
_ALL_EVENTS = 0x00000FFF
_LARGEST_RUN_BYTES = 1 << 28


class Watched:
    """A folder in which the kernel (inotify) reports every file that is opened, read or written."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._libc.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(_ALL_EVENTS))

    def happened(self) -> bool:
        """True when something was done there since it was asked last."""
        try:
            return bool(os.read(self._fd, 1 << 16))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder beside the models' own, with a file that no model may read."""
    folder = tmp_path_factory.mktemp("mutations")
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_bytes(b"SECRET__" * 8192)
    yield folder / "outside"


@pytest.fixture(scope="module")
def watched(outside: Path) -> Iterator[Watched]:
    watch = Watched(outside)
    (outside / "secret").read_bytes()
    assert watch.happened(), "the watch must see a plain read, or it proves nothing"
    yield watch
    watch.close()


def _go_through(recipe: Recipe, folder: Path, secret: Path) -> None:
    """What a job does with a model before anything is measured."""
    source, work = folder / "model", folder / "work"
    work.mkdir()
    source.write_bytes(recipe.file(str(secret)))
    try:
        model, _ = ingest(source, work, models.default_dims(recipe.model))
    except (ModelError, BadInputError) as error:
        assert len(str(error)) > 10
        hypothesis.event("refused")
        return
    hypothesis.event("taken")
    written = b"".join(path.read_bytes() for path in work.rglob("*") if path.is_file())
    assert b"SECRET__" not in written
    enumerate_candidates(model, _SPECS)
    inputs = [model.index.values[name] for name in model.index.inputs]
    if sum(spec.size_bytes for spec in inputs) > _LARGEST_RUN_BYTES:
        return
    try:
        Reference(model, [seeded_inputs(inputs, 0)], work).values(model.index.outputs)
    except (ModelError, BadInputError) as error:
        assert len(str(error)) > 10


@settings(
    max_examples=_EXAMPLES, deadline=None, derandomize=not _NIGHTLY, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(recipe=recipes())
def test_a_mutated_model_is_taken_or_refused_with_a_reason(
    recipe: Recipe, outside: Path, watched: Watched
) -> None:
    before = sorted(path.name for path in outside.parent.iterdir())
    with tempfile.TemporaryDirectory(dir=outside.parent) as folder:
        _go_through(recipe, Path(folder), outside / "secret")
    assert not watched.happened(), "a file was opened that is not the model's"
    assert sorted(path.name for path in outside.parent.iterdir()) == before
    assert [path.name for path in outside.iterdir()] == ["secret"] and watched.happened()


def _some(count: int) -> list[Recipe]:
    """The first recipes that hypothesis would try, whatever becomes of them."""
    found: list[Recipe] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @given(recipe=recipes(["light_zfnet512", "light_squeezenet", "silero_16k"]))
    def collect(recipe: Recipe) -> None:
        found.append(recipe)

    collect()
    return found


def test_a_server_outlives_mutated_models(
    start_server: StartServer, outside: Path, watched: Watched
) -> None:
    server = start_server(runners=2)
    quick = {"time_limit_s": 1, "strategy": "single", "dims": models.default_dims("silero_16k")}
    form = {"targets": "onnxruntime", "options": json.dumps(quick)}
    watched.happened()
    for recipe in _some(6):
        data = recipe.file(str(outside / "secret"))
        answer = server.http.post("/v1/tune", files={"model": ("m.onnx", data)}, data=form, timeout=200)
        assert answer.status_code in (200, 422), f"{recipe}: {answer.text}"
        assert answer.status_code == 200 or answer.json()["type"].startswith("urn:collage:problem:")
        assert server.http.get("/readyz").status_code == 200
    assert not watched.happened()
    spool = server.services.spool.path
    deadline = time.monotonic() + 5  # an answer is there a moment before its job's folder goes
    while list(spool.glob("job-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [path.name for path in spool.iterdir()]
    waiting = [
        name for name in left if name.startswith("output-")
    ]  # of the processes for the next jobs
    assert left == waiting and len(waiting) <= 3

"""The runner: which variant it takes, what it says of it, and what it finds wrong with a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from collage.backends.contract import Available, CompileContext, SubModel
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import cores_given
from collage.backends.numerics.comparison import output_error
from collage.backends.registry import resolve
from collage.deploy import runner
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.collage.deploy.packages import edit, sign, tiny

OWN = {"cpu": runner.cpu()[0], "threads": runner.cores(), "features": list(hardware().features)}
OTHER = {"cpu": "another processor", "description": "another machine"}
SUITS = "it suits this machine"
INF, NAN = float("inf"), float("nan")


def test_this_machine_is_known_as_the_tuner_knows_it() -> None:
    assert runner.cores() == cores_given()
    model, flags = runner.cpu()
    assert set(hardware().features) <= flags
    assert not model or hardware().cpu.split(" (")[0] in model


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"machine": OWN | OTHER}, {"machine": OWN}),
        ({"machine": OWN | OTHER | {"features": []}}, {"machine": OWN}),
        ({"machine": OWN | {"threads": runner.cores() + 6}}, {"machine": OWN}),
        ({"machine": OWN | {"features": []}}, {"machine": OWN}),
        ({"machine": {"features": []}}, {"machine": OWN}),  # as packages were written before
        ({"machine": OWN, "requirements": {"numpy": "0.1"}}, {"machine": OWN}),
        ({"machine": OWN, "threads": runner.cores() + 1}, {"machine": OWN}),
    ],
)
def test_variant_of_this_machine_runs_wherever_it_stands(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    package = tiny(tmp_path / "package", {"plain": {}, "first": first, "second": second})
    with runner.Session(package) as session:
        assert (session.variant, session.why) == ("second", SUITS)
        np.testing.assert_array_equal(session.run(None, {})[0], [0, 1, 2])


def test_what_is_not_as_it_was_tuned_is_told(tmp_path: Path) -> None:
    threads = runner.cores() + 1
    package = tiny(tmp_path / "package", {"a": {"machine": OWN | OTHER, "threads": threads}})
    with runner.Session(package) as session:
        assert f"its {threads} threads share {threads - 1} cores" in session.why
        assert "it was tuned on another machine" in session.why


def test_variant_with_threads_for_this_machine_goes_before_its_processor(tmp_path: Path) -> None:
    many = {"machine": OWN, "threads": runner.cores() + 1}
    package = tiny(tmp_path / "package", {"many": many, "few": {"machine": OWN | OTHER}})
    with runner.Session(package) as session:
        assert (session.variant, session.why) == ("few", "it was tuned on another machine")


def test_build_for_gpus_is_the_runtime_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "site" / "made_up_runtime_gpu-1.5.dist-info"
    about.mkdir(parents=True)
    text = "Metadata-Version: 2.1\nName: made-up-runtime-gpu\nVersion: 1.5\n"
    (about / "METADATA").write_text(text, encoding="utf-8")
    for version, why in (("1.5", SUITS), ("1.4", "made-up-runtime is 1.5, not 1.4; it was built anew")):
        plan = {"requirements": {"made-up-runtime": version}}
        package = tiny(tmp_path / version, {"a": plan})
        with pytest.raises(runner.PackageError, match="made-up-runtime is not installed"):
            runner.Session(package)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(about.parent)
            with runner.Session(package) as session:
                assert session.why.startswith(why)


@pytest.mark.parametrize(
    ("made", "kept", "is_right"),
    [
        ([9.0, 1, 2], [INF, 1, 2], True),
        ([-INF, 1, 2], [INF, 1, 2], False),
        ([INF, 1, 2], [INF, 1, 2], True),
        ([INF, 1, 2], [0.0, 1, 2], False),
        ([NAN, 1, 2], [INF, 1, 2], False),
        ([NAN, 1, 2], [0.0, 1, 2], False),
        ([-INF, 9, 2], [NAN, NAN, 2], True),
        ([9.0, 1, 2], [INF, 1, 3], False),
        ([9.0, 9, 9], [INF, NAN, -INF], True),
        ([complex(9, 1), 1 + 1j, 2], [complex(INF, 0), 1 + 1j, 2], False),
        ([complex(9, 1), 1 + 1j, 2], [complex(INF, NAN), 1 + 1j, 2], True),
    ],
)
def test_self_test_compares_what_is_finite_in_it(
    made: list[complex], kept: list[complex], is_right: bool, tmp_path: Path
) -> None:
    package = tiny(tmp_path / "package", {"a": {}})
    np.savez(package / "a/constants.npz", np.array(made))
    np.savez(package / runner.SELF_TEST, np.array(kept))
    with runner.Session(sign(package), check=False) as session:
        if is_right:
            assert session.self_test() == 0.0
            # The tuner judges the same way.
            assert output_error("max", [np.array(made)], [np.array(kept)]) == 0.0
        else:
            with pytest.raises(runner.PackageError, match="differs from the self-test"):
                session.self_test()


def _without_last_line(package: Path) -> None:
    sums = package / runner.SUMS
    lines = sums.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = sorted(lines, key=lambda line: "constants" in line)[:-1]
    sums.write_text("".join(kept), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / runner.SUMS).unlink(), "manifest.json is not in SHA256SUMS; copy the package"),
        (lambda p: (p / runner.SUMS).write_bytes(b""), "manifest.json is not in SHA256SUMS"),
        (lambda p: (p / runner.SUMS).write_bytes(b"\xff\xfe\n"), "manifest.json is not in SHA256SUMS"),
        (_without_last_line, "a/constants.npz is not in SHA256SUMS; copy the package again"),
        (lambda p: (p / "a/constants.npz").unlink(), "a/constants.npz is missing; copy the package"),
        (lambda p: (p / "a/constants.npz").write_bytes(b""), "a/constants.npz was changed; copy the"),
        (lambda p: (p / runner.MANIFEST).unlink(), "holds no package .*manifest.json"),
        (lambda p: (p / runner.MANIFEST).write_text("{", encoding="utf-8"), "holds no package"),
        (lambda p: (p / runner.MANIFEST).write_text("[]", encoding="utf-8"), "holds no package"),
        (lambda p: edit(p, lambda m: m["components"].clear()), "holds no package"),
        (lambda p: shutil.rmtree(p), "holds no package .*copy the package again"),
    ],
)
def test_damaged_folder_is_told(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    package = tiny(tmp_path / "package", {"a": {}})
    runner.Session(package).close()
    damage(package)
    with pytest.raises(runner.PackageError, match=message):
        runner.Session(package)


def test_variant_that_a_runtime_refuses_is_named(tmp_path: Path) -> None:
    part = {"runtime": "onnxruntime", "files": {"model": "a.onnx"}, "inputs": [], "outputs": []}
    settings = {"threads": 1, "level": "ORT_ENABLE_ALL", "entries": {}}
    package = tiny(tmp_path / "package", {"a": {"partitions": [part | {"settings": settings}]}})
    (package / "a/a.onnx").write_bytes(b"no model")
    with pytest.raises(runner.PackageError, match=r"variant 'a' cannot be opened: .*a\.onnx"):
        runner.Session(sign(package))


def test_runner_in_a_folder_that_is_no_package_is_one_line(tmp_path: Path) -> None:
    shutil.copy(runner.__file__, tmp_path / "runner.py")
    words = [sys.executable, "-I", tmp_path / "runner.py"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("runner: ") and done.stderr.count("\n") == 1, done.stderr


class Noting(dict[str, Any]):
    """Settings that note what is read of them."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)


def _dense(folder: Path) -> SubModel:
    """A product that every runtime takes."""
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "dense", ends[:1], ends[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx.save(made, folder / "model.onnx")
    specs = [(TensorSpec(name, "float32", (1, 8)),) for name in ("x", "y")]
    return SubModel(folder / "model.onnx", *specs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("onnxruntime", "onnxruntime -pool=off", "openvino", "ncnn"),
        *("mnn", "mnn -memory=low -power=high", "mnn -precision=int8"),
    ],
)
def test_every_setting_of_a_partition_is_read(text: str, tmp_path: Path) -> None:
    target = Target.parse(text)
    backend = resolve(target)
    if not isinstance(backend.probe(), Available):
        pytest.skip("the runtime is missing")
    model = _dense(tmp_path / "model")
    (tmp_path / "work").mkdir()
    executable = backend.compile(model, target, CompileContext(1, tmp_path / "work"))
    alone = executable.standalone()
    assert alone is not None
    settings = Noting(alone.settings)
    ends = [
        [{"name": s.name, "dtype": s.dtype, "shape": [1, 8]} for s in side]
        for side in (model.inputs, model.outputs)
    ]
    part = {
        "settings": settings,
        "files": {role: str(path) for role, path in alone.files.items()},
        "inputs": ends[0],
        "outputs": ends[1],
    }
    opened = runner.PARTS[alone.runtime](tmp_path, part)
    x, y = np.arange(8, dtype=np.float32)[None], np.zeros((1, 8), np.float32)
    opened.bind([x], [y])()
    np.testing.assert_allclose(y, x, atol=5e-2)
    assert settings.seen == settings.keys()
    if alone.runtime == "onnxruntime":
        assert opened.session.get_session_options().enable_cpu_mem_arena is ("off" not in text)
    executable.close()

"""A package runs in a process that has no Collage, and says what is wrong with it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import collage
from benchmarks.load_time import make_artifact
from collage.backends.numerics.seeded import seeded_inputs
from collage.deploy import runner
from collage.deploy.package import PLAIN, write_package
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from tests.collage.deploy.packages import sign
from tests.models import MODELS

pytestmark = pytest.mark.slow
TARGETS = ("onnxruntime -threads=1", "openvino", "mnn", "ncnn")
# Only the runtimes may be imported, and the package's own runner.
ALONE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("collage", "onnx", "onnx_ir", "sqlalchemy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
import numpy as np
from runner import Session
with Session(sys.argv[1]) as session, np.load(sys.argv[2]) as feed:
    made = session.run(None, {name: feed[name] for name in feed.files})
    np.savez(sys.argv[3], *made)
    told = session.get_modelmeta().custom_metadata_map
    print(session.variant, "|", session.why, "|", [i.name for i in session.get_inputs()], told)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PP-OCR's classifier in four partitions on four runtimes."""
    folder = tmp_path_factory.mktemp("artifact")
    info = MODELS["ppocr_cls"]
    path = normalize(info.path, folder, info.dims).path
    proto = onnx.load(path)
    proto.metadata_props.add(key="stride", value="32")
    onnx.save(proto, path)
    model = Model.open(folder / "model.onnx")
    laid = line(model.index, model.index.all_nodes)
    size = len(laid.order) // len(TARGETS)
    inner = [min(laid.waists, key=lambda w: abs(w - size * i)) for i in range(1, len(TARGETS))]
    cuts = [0, *inner, len(laid.order)]
    parts = tuple(
        Candidate(laid.run(cuts[i], cuts[i + 1]), Target.parse(text)) for i, text in enumerate(TARGETS)
    )
    return make_artifact(model, Plan(parts), folder / "cls.collage.onnx")


@pytest.fixture(scope="module")
def package(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(artifact, tmp_path_factory.mktemp("package") / "cls").folder


def _run_alone(
    package: Path, feed: dict[str, np.ndarray], folder: Path
) -> tuple[str, list[np.ndarray]]:
    np.savez(folder / "feed.npz", **feed)
    command = [sys.executable, "-I", "-c", ALONE, package, folder / "feed.npz", folder / "made.npz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "made.npz") as made:
        return done.stdout, [made[name] for name in made.files]


def test_package_runs_without_collage_as_load_does(
    artifact: Path, package: Path, tmp_path: Path
) -> None:
    with collage.load(artifact) as session:
        feed = seeded_inputs(session.inputs, 5)
        wanted = session.run(None, feed)
    said, made = _run_alone(package, feed, tmp_path)
    assert said.startswith("x86_64-") or not said.startswith(PLAIN)
    assert "'stride': '32'" in said
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_requirements_are_the_versions_of_the_runtimes_used(package: Path) -> None:
    lines = (package / "requirements.txt").read_text(encoding="utf-8").split()
    assert [line.split("==")[0] for line in lines] == [
        "MNN",
        "ncnn",
        "numpy",
        "onnxruntime",
        "openvino",
    ]
    assert all("==" in line for line in lines)


def test_manifest_is_a_model_package_of_onnx_runtime(package: Path) -> None:
    manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    # ONNX Runtime refuses other keys at the top.
    assert manifest.keys() == {"schema_version", "components", "additional_metadata"}
    variants = manifest["components"]["model"]["variants"]
    *_, plain = variants
    assert plain == PLAIN and variants[PLAIN]["ep"] == "CPUExecutionProvider"
    model = (
        package
        / variants[PLAIN]["variant_directory"]
        / variants[PLAIN]["executor_info"]["ort"]["model_file"]
    )
    assert model.is_file()


def test_runner_checks_itself(package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", package / "runner.py"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "all files as written" in done.stdout


def test_changed_file_is_named(package: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(package, tmp_path / "changed")
    model = changed / PLAIN / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(runner.PackageError, match=r"plain/model.onnx was changed; copy the package"):
        runner.Session(changed)
    (changed / "requirements.txt").unlink()
    with pytest.raises(runner.PackageError, match=r"plain/model.onnx was changed|is missing"):
        runner.Session(changed)


def _edited(package: Path, folder: Path, **plan: object) -> Path:
    """A copy whose planned variant says something else."""
    copy = shutil.copytree(package, folder)
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    variants = manifest["components"]["model"]["variants"]
    variants[next(iter(variants))]["executor_info"]["collage"] |= plan
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"requirements": {"absent-runtime": "1.0"}}, "absent-runtime is not installed"),
        ({"machine": {"features": ["avx9000"]}}, "this processor lacks avx9000"),
        ({"machine": {"architecture": "vax"}}, "it is for vax"),
    ],
)
def test_variant_for_another_machine_gives_way_to_the_plain_model(
    package: Path, tmp_path: Path, plan: dict[str, object], reason: str
) -> None:
    edited = _edited(package, tmp_path / "edited", **plan)
    with runner.Session(edited, check=False) as session:
        assert session.variant == PLAIN
        assert re.search(reason, session.why)
        assert session.self_test() < 1e-3
    name = next(iter(session.variants))
    with pytest.raises(runner.PackageError, match=reason):
        runner.Session(edited, variant=name, check=False)


def test_runtime_of_another_version_is_built_anew(package: Path, tmp_path: Path) -> None:
    edited = _edited(package, tmp_path / "edited", requirements={"openvino": "1.0", "ncnn": "1.0"})
    with runner.Session(edited, check=False) as session:
        assert session.variant != PLAIN
        said = r"openvino is [\d.]+, not 1.0, ncnn is .*, not 1.0; it was built anew, and its outputs are right"
        assert re.search(said, session.why)
        assert session.self_test() < 1e-2


def test_variant_that_another_version_cannot_run_gives_way(package: Path, tmp_path: Path) -> None:
    edited = _edited(package, tmp_path / "edited", requirements={"openvino": "1.0"})
    manifest = json.loads((edited / "manifest.json").read_text(encoding="utf-8"))
    name = next(iter(manifest["components"]["model"]["variants"]))
    plan = manifest["components"]["model"]["variants"][name]["executor_info"]["collage"]
    (part,) = (each for each in plan["partitions"] if each["runtime"] == "openvino")
    (edited / name / part["files"]["model"]).write_bytes(b"of another version")
    with runner.Session(edited, check=False) as session:
        assert session.variant == PLAIN
        assert re.search("openvino is .*, not 1.0, and so it fails: ", session.why)
    with pytest.raises(runner.PackageError, match=r"no variant can run here: .*and so it fails"):
        runner.Session(edited, variant=name, check=False)


def test_exact_versions_go_before_others(package: Path, tmp_path: Path) -> None:
    edited = _edited(package, tmp_path / "edited", requirements={"openvino": "1.0"})
    manifest = json.loads((edited / "manifest.json").read_text(encoding="utf-8"))
    variants = manifest["components"]["model"]["variants"]
    first = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
    name = next(iter(variants))
    exact = first["components"]["model"]["variants"][name]
    manifest["components"]["model"]["variants"] = {"aged": variants[name], "exact": exact}
    (edited / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with runner.Session(edited, check=False) as session:
        assert (session.variant, session.why) == ("exact", "it suits this machine")


def test_wrong_inputs_are_clear(package: Path) -> None:
    with runner.Session(package, variant=PLAIN, check=False) as session:
        (spec,) = session.get_inputs()
        right = np.zeros(spec.shape, spec.dtype)
        with pytest.raises(ValueError, match=r"inputs missing: .*, unknown: .'y'."):
            session.run(None, {"y": right})
        with pytest.raises(
            ValueError, match=r"must be an array of float32 of shape .*, not float64 of"
        ):
            session.run(None, {spec.name: right.astype("float64")})
        with pytest.raises(ValueError, match=r"of shape \[1, 3, .*, not float32 of shape \[1, 3, "):
            session.run(None, {spec.name: right[..., 1:]})
        with pytest.raises(ValueError, match="unknown outputs"):
            session.run(["nothing"], {spec.name: right})


def test_wrong_outputs_are_found_by_the_self_test(package: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    with np.load(copy / "self-test.npz") as kept:
        feed, output, *others = (kept[name] for name in kept.files)
    np.savez(copy / "self-test.npz", feed, output + 1, *others)
    with (
        runner.Session(copy, variant=PLAIN, check=False) as session,
        pytest.raises(runner.PackageError, match="differs from the self-test"),
    ):
        session.self_test()


def test_package_of_the_same_model_gets_a_variant(
    artifact: Path, package: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    variants = manifest["components"]["model"]["variants"]
    first = next(iter(variants))
    other = variants.pop(first)
    shutil.move(copy / first, copy / "arm64-other")
    other["variant_directory"] = "arm64-other"
    other["executor_info"]["collage"]["machine"]["architecture"] = "arm64"
    manifest["components"]["model"]["variants"] = {"arm64-other": other, **variants}
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    sign(copy)
    written = write_package(artifact, copy)
    assert written.variant == first and written.others == ("arm64-other", PLAIN)
    with runner.Session(copy) as session:
        assert session.variant == first and "it is for arm64" in session.why


def test_folder_with_something_else_is_refused(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me", encoding="utf-8")
    with pytest.raises(BadInputError, match="is not empty and holds no package; give a new folder"):
        write_package(artifact, tmp_path)
    assert (tmp_path / "mine.txt").is_file()


def test_awkward_names_and_values_that_are_not_finite(tmp_path: Path) -> None:
    """Outputs that are an input, or a weight with the name of an argument of numpy's; two inputs; infinity."""
    text = """<ir_version: 8, opset_import: ["" : 20]>
    agraph (float[4] x, float[4] y) => (float[4] file, float[4] z, float[4] w, float[4] y)
    <float[4] file = {1, 2, 3, 4}> { d = Sub(x, x) w = Div(y, d) z = Sub(x, y) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "source.onnx")
    normalize(tmp_path / "source.onnx", tmp_path, {})
    model = Model.open(tmp_path / "model.onnx")
    plan = Plan((Candidate(model.index.all_nodes, Target.parse("onnxruntime")),))
    made = write_package(make_artifact(model, plan, tmp_path / "a.onnx"), tmp_path / "package")
    for variant in (made.variant, PLAIN):
        with runner.Session(made.folder, variant=variant) as session:
            x, y = np.arange(4, dtype="f"), np.ones(4, "f")
            file, z, w, same = session.run(None, {"y": y, "x": x})
            np.testing.assert_array_equal(same, y)
            np.testing.assert_array_equal(file, [1, 2, 3, 4])
            np.testing.assert_array_equal(z, x - y)
            assert np.isinf(w).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(string[2] x) => (string[2] y) { y = Identity(x) }", "'x' of partition 0 is text"),
        (
            "(float[4] x) => (int64[1, n] y) { y = NonZero(x) }",
            "'y' of partition 0 has a shape that only",
        ),
        ("(bfloat16[2] x) => (float[2] y) { y = Cast<to=1>(x) }", "'x' of partition 0 is bfloat16"),
        ("(float[2] x) => (bfloat16[2] y) { y = Cast<to=16>(x) }", "'y' of partition 0 is bfloat16"),
    ],
)
def test_what_packages_do_not_have_is_named(text: str, reason: str, tmp_path: Path) -> None:
    source = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    onnx.save(source, tmp_path / "source.onnx")
    normalize(tmp_path / "source.onnx", tmp_path, {})
    model = Model.open(tmp_path / "model.onnx")
    plan = Plan((Candidate(model.index.all_nodes, Target.parse("onnxruntime")),))
    with pytest.raises(BadInputError, match=f"{reason}.*run the artifact with collage.load"):
        write_package(make_artifact(model, plan, tmp_path / "a.onnx"), tmp_path / "package")

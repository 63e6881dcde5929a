"""Rules for the whole repository: imports of runtimes, settings, text encodings, docs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repository.sources import FOLDERS, PACKAGES, ROOT, files, named, parsed

FILES = [path for package in PACKAGES for path in files(package)]

# It is copied into packages, which run without the backends.
RUNNER = "collage/deploy/runner.py"
# Runtime module → the files that may import it. The reference is computed by ONNX Runtime.
RUNTIMES = {
    "onnxruntime": (
        "backends/onnxruntime/",
        "backends/support/ort_session.py",
        "backends/quantization/",
        "backends/numerics/reference.py",
        RUNNER,
    ),
    "openvino": ("backends/openvino/", RUNNER),
    "MNN": ("backends/mnn/", RUNNER),
    "ncnn": ("backends/ncnn/", RUNNER),
    "pnnx": ("backends/ncnn/",),
    "torch": ("backends/torch/",),
    "onnx2fx": ("backends/torch/",),
}


def _imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node


def _in_functions(tree: ast.AST) -> set[ast.stmt]:
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {n for function in functions for n in ast.walk(function) if isinstance(n, ast.stmt)}


def _type_checking(tree: ast.AST) -> set[ast.stmt]:
    blocks = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING"
    ]
    return {n for block in blocks for n in ast.walk(block) if isinstance(n, ast.stmt)}


@pytest.mark.parametrize("package", PACKAGES)
def test_runtimes_stay_in_their_files_and_in_functions(package: str) -> None:
    for path in files(package):
        tree, name = parsed(path), named(path)
        used = [
            (module, statement)
            for module, statement in _imports(tree)
            if module.split(".")[0] in RUNTIMES
        ]
        lazy = _in_functions(tree) | _type_checking(tree) if used else set()
        for module, statement in used:
            homes = RUNTIMES[module.split(".")[0]]
            where = f"{name}:{statement.lineno} imports {module}"
            assert name.startswith(homes), f"{where}, which belongs into {' or '.join(homes)}"
            assert statement in lazy, (
                f"{where} outside a function: a missing runtime would be an ImportError"
            )


@pytest.mark.parametrize("folder", FOLDERS)
def test_text_is_utf8_whatever_the_locale(folder: str) -> None:
    """Python asks the C library at each call, and any runtime in the process may have set another locale."""
    for path in files(folder):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in ("read_text", "write_text")):
            continue  # most files; parsing them takes long
        for call in ast.walk(parsed(path)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in (
                "read_text",
                "write_text",
            ):
                of = getattr(getattr(call.func, "value", None), "func", None)
                if getattr(of, "id", "") == "distribution":
                    continue  # of a package's description, which Python reads as UTF-8
                where = f"{named(path)}:{call.lineno}"
                assert any(given.arg == "encoding" for given in call.keywords), where


def test_the_server_never_parses_models() -> None:
    """Nothing of the service but what runs in children may import what parses or runs models."""
    children = {
        "service/storage/partition_graph.py",
        "service/storage/model_facts.py",
        "service/jobs/job_process.py",
    }
    for path in files("service"):
        name = named(path)
        if name in children:
            continue
        for module, _ in _imports(parsed(path)):
            assert module.split(".")[0] not in ("onnx", "onnx_ir", "onnxscript", "highspy"), name
            assert module not in (
                "collage.partitioner.graph.model",
                "collage.partitioner.ingest.normalize",
                "collage.tuning.pipeline",
            ), name


def test_every_variable_is_documented() -> None:
    known = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    containers = (ROOT / "docker/Dockerfile", ROOT / "docker/compose.yaml")
    for path in (*FILES, *containers):
        for name in re.findall(r"COLLAGE_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8")):
            assert re.search(rf"\b{name}\b", known), f"{path.relative_to(ROOT)} reads {name}"


def test_every_setting_is_documented_with_its_default() -> None:
    from collage.service.settings import Settings

    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    lines = text.partition("Outside of the server")[0].splitlines()
    rows = {m[1]: m[2] for line in lines if (m := re.match(r"\| `COLLAGE_(\w+)` \| (.*?) \|", line))}
    assert set(rows) == {name.upper() for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, (int, float, str)):
            text = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
            assert f"`{text}`" in rows[name.upper()], name


def test_constraints_pin_everything_and_name_no_place() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for line in lines[1:]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), line

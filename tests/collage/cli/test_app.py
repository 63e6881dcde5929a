"""The command line as its user meets it: exit statuses, one clear line for errors, JSON where asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.models import MODELS

# each command is a process of its own
pytestmark = pytest.mark.slow

SMALL = MODELS["ppocr_cls"]


@pytest.fixture
def collage(tmp_path: Path) -> Collage:
    return Collage(tmp_path)


class Collage:
    """Runs the command line in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._environment = {**os.environ, "XDG_DATA_HOME": str(home / "data"), "HOME": str(home)}
        self._environment.pop("COLLAGE_DATABASE_URL", None)

    def __call__(
        self, *words: str, status: int = 0, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "collage", *words],
            capture_output=True,
            encoding="utf-8",
            env=self._environment,
            cwd=self.home,
            timeout=timeout_s,
        )
        assert done.returncode == status, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def refuses(self, *words: str, status: int = 2) -> str:
        """The one line on stderr."""
        done = self(*words, status=status)
        said = [line for line in done.stderr.splitlines() if line.startswith("collage: ")]
        assert len(said) == 1, done.stderr
        assert "Traceback" not in done.stderr
        return said[0]


def _model(
    path: Path, node: onnx.NodeProto, *, domain: str = "", shape: tuple[int, ...] = (4,)
) -> Path:
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_truncated_and_random_bytes_are_refused(collage: Collage, tmp_path: Path) -> None:
    whole = SMALL.path.read_bytes()
    for name, content in (
        ("truncated", whole[: len(whole) // 2]),
        ("random", np.random.default_rng(0).bytes(5000)),
        ("empty", b""),
        ("text", b"hello"),
    ):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        assert "model" in collage.refuses("tune", str(path), "-t", "onnxruntime")


def test_a_small_model_that_asks_for_128_gib_is_refused(collage: Collage, tmp_path: Path) -> None:
    fill = helper.make_node("ConstantOfShape", ["shape"], ["y"])
    graph = helper.make_graph(
        [fill],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 35])],
    )
    path = tmp_path / "bomb.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert path.stat().st_size < 200
    done = collage("tune", str(path), "-t", "onnxruntime", status=2)
    assert "137438953472 bytes" in done.stderr


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin"])
def test_external_data_outside_the_folder_is_refused(
    collage: Collage, tmp_path: Path, location: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert "w" in collage.refuses("tune", str(path), "-t", "onnxruntime")


def test_an_unknown_operator_domain_is_named(collage: Collage, tmp_path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="my.own", name="frob")
    path = _model(tmp_path / "own.onnx", node, domain="my.own")
    said = collage.refuses("tune", str(path), "-t", "onnxruntime")
    assert "my.own" in said and "Frobnicate" in said


def test_free_dimensions_that_nothing_is_said_of_are_proposed(collage: Collage, tmp_path: Path) -> None:
    model = tmp_path / "free.onnx"
    text = """<ir_version: 10, opset_import: ["" : 17]>
        g (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), model)
    done = collage("tune", str(model), "-t", "onnxruntime", "--time-limit", "2", "--verbose")
    assert "the model takes --dim batch=1..8; change what does not fit" in done.stderr + done.stdout


def test_free_dimensions_of_which_no_size_runs_are_listed(collage: Collage, tmp_path: Path) -> None:
    model = tmp_path / "none.onnx"
    text = """<ir_version: 10, opset_import: ["" : 17]>
        g (float[a, b] x, float[3, 5] w) => (float[7919, 5] y) <int64[2] s = {7919, 3}>
        { r = Reshape(x, s)  y = MatMul(r, w) }"""
    onnx.save(onnx.parser.parse_model(text), model)
    said = collage.refuses("tune", str(model), "-t", "onnxruntime")
    assert "--dim a=1" in said and "a (axis 0 of input x)" in said and "no sizes were found" in said


def test_unknown_targets_and_options_list_the_known_ones(collage: Collage) -> None:
    dims = [word for name, size in SMALL.dims.items() for word in ("--dim", f"{name}={size}")]
    said = collage.refuses("tune", str(SMALL.path), "-t", "tensorflow", *dims)
    assert "tensorflow" in said and "onnxruntime" in said and "openvino" in said
    said = collage.refuses("tune", str(SMALL.path), "-t", "openvino -precision=f8", *dims)
    assert "bf16" in said
    said = collage.refuses("tune", str(SMALL.path), "-t", "openvino -turbo=1", *dims)
    assert "turbo" in said and "precision" in said


def test_a_target_that_is_not_here_says_what_is_missing(collage: Collage) -> None:
    dims = [word for name, size in SMALL.dims.items() for word in ("--dim", f"{name}={size}")]
    said = collage.refuses("tune", str(SMALL.path), "-t", "onnxruntime -ep=coreml", *dims)
    assert "coreml" in said.lower()


def test_bad_usage_is_status_2(collage: Collage, tmp_path: Path) -> None:
    collage("tune", status=2)
    collage("tune", str(tmp_path / "none.onnx"), "-t", "onnxruntime", status=2)
    collage("tune", str(SMALL.path), "-t", "onnxruntime", "--dim", "batch", status=2)
    collage("nonsense", status=2)
    assert "is a plain ONNX model" in collage.refuses("run", str(SMALL.path))
    assert "is a plain ONNX model" in collage.refuses("explain", str(SMALL.path))


def test_targets_costs_and_database(collage: Collage) -> None:
    targets = {t["name"]: t for t in json.loads(collage("targets", "--json").stdout)}
    assert targets["onnxruntime"]["available"]
    assert {o["name"] for o in targets["openvino"]["options"]} >= {"precision", "threads"}
    lines = collage("targets").stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["onnxruntime", "openvino", "mnn"]
    assert not any(line.startswith(("null", "simulated")) for line in lines)
    assert "-precision" in collage("targets", "openvino").stdout
    assert "for tests only" in collage("targets", "null").stdout
    assert "openvino" in collage.refuses("targets", "tensorflow")
    assert json.loads(collage("costs", "list", "--json").stdout) == []
    assert json.loads(collage("costs", "stats", "--json").stdout)["costs"] == 0
    assert "schema" in collage("db", "upgrade").stdout


def test_tune_run_bench_explain(collage: Collage, tmp_path: Path) -> None:
    dims = [word for name, size in SMALL.dims.items() for word in ("--dim", f"{name}={size}")]
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    targets = ("-t", "onnxruntime", "-t", "openvino")
    done = collage(
        "tune",
        str(SMALL.path),
        *targets,
        *dims,
        "-o",
        str(out),
        "--report",
        str(report),
        "--time-limit",
        "5",
    )
    assert "ours" in done.stdout and f"wrote {out.name}" in done.stdout
    assert f"collage explain {out.name}" in done.stdout
    steps = [line for line in done.stderr.splitlines() if " step " in line]
    assert len(steps) == len(set(steps)) <= 6 and "writing the artifact" in steps[-1]
    verbose = collage("tune", str(SMALL.path), *targets, *dims, "--time-limit", "5", "--verbose")
    assert "ingest:" in verbose.stderr and "--fresh" in verbose.stdout
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["partitions"]
    samples = tmp_path / "x.npz"
    shape = tuple(onnx_shape(out))
    np.savez(samples, x=np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32))
    collage("run", str(out), "--inputs", str(samples), "--outputs", str(tmp_path / "y.npz"))
    with np.load(tmp_path / "y.npz") as made:
        assert all(made[name].shape[0] == 2 for name in made.files)
    bench = json.loads(collage("bench", str(out), "--json").stdout)
    assert bench["speedup_over_best_single"] > 0
    collage("explain", str(out), "--picture", str(tmp_path / "p.svg"))
    assert (tmp_path / "p.svg").read_text(encoding="utf-8").startswith("<svg")
    costs = json.loads(collage("costs", "list", "--json", "-t", "onnxruntime").stdout)
    assert costs and all(row["target"].startswith("onnxruntime") for row in costs)


def onnx_shape(path: Path) -> list[int]:
    return [d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]

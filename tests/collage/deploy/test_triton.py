"""A model of a Triton repository: its configuration as Triton's protobuf reads it, and its model.py as Triton calls it.

Only Triton's own module, which exists inside of its process alone, has a stand-in.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient
from google.protobuf import text_format
from typer.testing import CliRunner

import collage
from collage.cli.app import app
from collage.deploy.triton import config, write_triton_model
from collage.partitioner.errors import BadInputError
from tests.collage.serving.conftest import ROWS, artifact_of

STAND_IN = '''
"""The part of Triton's module that model.py uses."""
class TritonModelException(Exception): pass
class TritonError(Exception): pass
class Logger:
    log_info = staticmethod(lambda text: print("LOG", text))
class Tensor:
    def __init__(self, name, array): self._name, self._array = name, array
    def name(self): return self._name
    def as_numpy(self): return self._array
class InferenceResponse:
    def __init__(self, output_tensors=(), error=None): self.tensors, self.error = output_tensors, error
class Request:
    def __init__(self, tensors, names): self.tensors, self._names = tensors, names
    def requested_output_names(self): return self._names
def get_input_tensor_by_name(request, name):
    return next((tensor for tensor in request.tensors if tensor.name() == name), None)
'''
# Neither Collage nor onnx may be imported, as in Triton's container.
OPEN = """
import sys, json
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("collage", "onnx", "onnx_ir"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
import importlib.util
import numpy as np
import triton_python_backend_utils as triton
spec = importlib.util.spec_from_file_location("model", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
model = module.TritonPythonModel()
model.initialize({"model_name": "rows"})
"""
RUN = (
    OPEN
    + """
x = np.array([[0.5, -1, 2, 0]], np.float32)
requests = [
    triton.Request([triton.Tensor("x", x)], ["z", "y"]),
    triton.Request([triton.Tensor("x", x.astype("f8"))], ["y"]),
    triton.Request([triton.Tensor("x", x)], ["y"]),
    triton.Request([], ["y"]),
]
answers = model.execute(requests)
model.finalize()
for answer in answers:
    if answer.error is not None:
        print(json.dumps(str(answer.error)))
    else:
        print(json.dumps({t.name(): t.as_numpy().tolist() for t in answer.tensors}))
"""
)
# As Triton gives and takes values without dimensions: with one.
SCALARS = (
    OPEN
    + """
given = {"s": np.array([2.5], np.float32), "x": np.array([[1, 2]], np.float32)}
tensors = [triton.Tensor(*pair) for pair in given.items()]
(answer,) = model.execute([triton.Request(tensors, ["t", "y"])])
assert answer.error is None, answer.error
print(json.dumps([[t.name(), list(t.as_numpy().shape), t.as_numpy().tolist()] for t in answer.tensors]))
"""
)


def _model_config(text: str) -> Any:
    """A configuration as Triton reads it; the module is loaded alone, since its package needs grpc."""
    path = Path(tritonclient.__path__[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return text_format.Parse(text, module.ModelConfig())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton")
    artifact = artifact_of(ROWS.format(batch=1), folder / "artifact", "rows v2")
    words = ["package", str(artifact), "-o", str(folder / "models"), "--triton", "--threads", "1"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and "tritonserver --model-repository" in done.stdout
    return folder / "models"


@pytest.mark.slow
def test_configuration_is_what_triton_reads(repository: Path) -> None:
    found = _model_config((repository / "rows_v2" / "config.pbtxt").read_text(encoding="utf-8"))
    assert found.backend == "python" and found.max_batch_size == 0
    x, y, z = (*found.input, *found.output)
    assert [(t.name, list(t.dims)) for t in (x, y, z)] == [("x", [1, 4]), ("y", [1, 4]), ("z", [1, 1])]
    assert {t.data_type for t in (x, y, z)} == {
        x.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name["TYPE_FP32"].number
    }
    (group,) = found.instance_group
    assert group.count == 1 and group.kind == group.KIND_CPU


def test_configuration_bears_awkward_names_scalars_and_types() -> None:
    types = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    types += ("float16", "float32", "float64")
    inputs = [{"name": f'a "{t}"\\\n:0 ö', "dtype": t, "shape": [2, 3]} for t in types]
    found = _model_config(config(inputs, [{"name": "s", "dtype": "int64", "shape": []}]))
    assert [each.name for each in found.input] == [each["name"] for each in inputs]
    assert len({each.data_type for each in found.input}) == len(types)
    (scalar,) = found.output
    # Triton refuses a reshape to no dimensions where a model has no batches.
    assert list(scalar.dims) == [1] and not scalar.HasField("reshape")
    (empty,) = _model_config(config([{"name": "past", "dtype": "int8", "shape": [1, 0]}], [])).input
    assert list(empty.dims) == [1, -1]  # Triton refuses 0
    with pytest.raises(BadInputError, match="output 'b' is bfloat16, which Triton's Python backend"):
        config(inputs, [{"name": "b", "dtype": "bfloat16", "shape": [1]}])


@pytest.mark.slow
def test_model_answers_as_load_does(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "triton_python_backend_utils.py").write_text(STAND_IN, encoding="utf-8")
    model = repository / "rows_v2" / "1" / "model.py"
    command = [sys.executable, "-I", "-c", RUN, tmp_path, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    log, first, wrong, again, none = done.stdout.splitlines()
    assert log.startswith("LOG rows: variant ") and "it suits this machine" in log
    with collage.load(repository.parent / "artifact" / "rows v2.collage.onnx", threads=1) as session:
        y, z = session.run(None, {"x": np.array([[0.5, -1, 2, 0]], np.float32)})
    assert list(json.loads(first)) == ["z", "y"]
    np.testing.assert_allclose(json.loads(first)["z"], z, rtol=1e-6)
    np.testing.assert_allclose(json.loads(again)["y"], y, rtol=1e-6)
    assert "must be an array of float32 of shape [1, 4], not float64" in json.loads(wrong)
    assert "NoneType" not in json.loads(none) and "'x' is missing" in json.loads(none)


@pytest.mark.slow
def test_changed_package_keeps_the_model_from_loading(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "triton_python_backend_utils.py").write_text(STAND_IN, encoding="utf-8")
    copy = shutil.copytree(repository / "rows_v2", tmp_path / "rows_v2")
    with (copy / "1" / "package" / "plain" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    command = [sys.executable, "-I", "-c", RUN, tmp_path, copy / "1" / "model.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("plain/model.onnx was changed; copy the package again")


@pytest.mark.slow
def test_values_without_dimensions_have_one_in_triton(tmp_path: Path) -> None:
    (tmp_path / "triton_python_backend_utils.py").write_text(STAND_IN, encoding="utf-8")
    text = """<ir_version: 8, opset_import: ["" : 20]>
        scaled (float s, float[1, 2] x) => (float[1, 2] y, float t) { y = Mul(x, s) t = Mul(s, s) }"""
    artifact = artifact_of(text, tmp_path / "artifact", "scaled")
    model, _ = write_triton_model(artifact, tmp_path / "models", 1)
    found = _model_config((model / "config.pbtxt").read_text(encoding="utf-8"))
    assert [list(tensor.dims) for tensor in (*found.input, *found.output)] == [[1], [1, 2], [1, 2], [1]]
    assert not any(tensor.HasField("reshape") for tensor in (*found.input, *found.output))
    command = [sys.executable, "-I", "-c", SCALARS, tmp_path, model / "1" / "model.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == [["t", [1], [6.25]], ["y", [1, 2], [[2.5, 5.0]]]]

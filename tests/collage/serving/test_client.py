"""Triton's public client talks to the server, with tensors in JSON and binary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

import collage
from tests.collage.serving.conftest import Running, Start, artifact_of

pytestmark = pytest.mark.slow
X = np.array([[0.5, -1.0, 2.0, 0.0]], np.float32)
TYPES = {
    "BOOL": ("bool", [True, False, True]),
    "INT8": ("int8", [-128, 0, 127]),
    "INT16": ("int16", [-(2**15), 0, 2**15 - 1]),
    "INT32": ("int32", [-(2**31), 0, 2**31 - 1]),
    "INT64": ("int64", [-(2**63), 0, 2**63 - 1]),
    "UINT8": ("uint8", [0, 1, 255]),
    "UINT16": ("uint16", [0, 1, 2**16 - 1]),
    "UINT32": ("uint32", [0, 1, 2**32 - 1]),
    "UINT64": ("uint64", [0, 1, 2**64 - 1]),
    "FP16": ("float16", [0.5, -2.0, 65504.0]),
    "FP32": ("float", [0.1, -2.5, 1e30]),
    "FP64": ("double", [0.1, -2.5, 1e300]),
    "BYTES": ("string", ["", "a b", "größer"]),
}


@pytest.fixture
def client(rows_server: Running) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(rows_server.url.removeprefix("http://")) as found:
        yield found


def _input(name: str, array: np.ndarray, datatype: str, binary: bool) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_answers_as_load_does(
    client: triton.InferenceServerClient, rows_artifact: Path, binary_in: bool, binary_out: bool
) -> None:
    with collage.load(rows_artifact) as session:
        y, z = session.run(None, {"x": X})
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("z", "y")]
    made = client.infer("rows", [_input("x", X, "FP32", binary_in)], outputs=outputs, request_id="r-7")
    np.testing.assert_array_equal(made.as_numpy("y"), y)
    np.testing.assert_array_equal(made.as_numpy("z"), z)
    answer = made.get_response()
    assert answer["id"] == "r-7" and answer["model_name"] == "rows"
    assert [output["name"] for output in answer["outputs"]] == ["z", "y"]


def test_infer_without_outputs_gives_all(client: triton.InferenceServerClient) -> None:
    made = client.infer("rows", [_input("x", X, "FP32", True)], model_version="1")
    np.testing.assert_allclose(made.as_numpy("y"), np.tanh(X) * 3, rtol=1e-5)
    np.testing.assert_allclose(made.as_numpy("z"), [[1.5]], rtol=1e-5)


def test_server_and_model_tell_about_themselves(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("rows") and client.is_model_ready("rows", "1")
    assert not client.is_model_ready("other") and not client.is_model_ready("rows", "2")
    server = client.get_server_metadata()
    assert server["name"] == "collage" and "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("rows")
    assert model["versions"] == ["1"] and model["platform"] == "collage"
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]
    assert [output["shape"] for output in model["outputs"]] == [[1, 4], [1, 1]]


def test_statistics_count_requests(client: triton.InferenceServerClient) -> None:
    def stat() -> dict[str, object]:
        (found,) = client.get_inference_statistics("rows")["model_stats"]
        return found

    client.infer("rows", [_input("x", X, "FP32", True)])
    before = stat()
    client.infer("rows", [_input("x", X, "FP32", True)])
    after = stat()
    assert after["execution_count"] == before["execution_count"] + 1
    assert (
        after["inference_stats"]["success"]["count"]
        == before["inference_stats"]["success"]["count"] + 1
    )
    assert (
        after["inference_stats"]["compute_infer"]["ns"]
        > before["inference_stats"]["compute_infer"]["ns"]
    )


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(client: triton.InferenceServerClient, algorithm: str) -> None:
    made = client.infer(
        "rows",
        [_input("x", X, "FP32", True)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_allclose(made.as_numpy("z"), [[1.5]], rtol=1e-5)


def test_client_gets_the_protocols_own_error(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="input 'x' must be FP32, not FP64"):
        client.infer("rows", [_input("x", X.astype(np.float64), "FP64", True)])
    with pytest.raises(InferenceServerException, match="no model 'other'"):
        client.infer("other", [_input("x", X, "FP32", True)])


def test_every_datatype_goes_both_ways(tmp_path: Path, start: Start) -> None:
    """Of each type one input of three values; the output has them twice."""
    inputs = ", ".join(f"{onnx}[3] {name}" for name, (onnx, _) in TYPES.items())
    outputs = ", ".join(f"{onnx}[6] out_{name}" for name, (onnx, _) in TYPES.items())
    body = " ".join(f"out_{name} = Concat <axis = 0> ({name}, {name})" for name in TYPES)
    text = f'<ir_version: 8, opset_import: ["" : 20]> types ({inputs}) => ({outputs}) {{ {body} }}'
    server = start(artifact_of(text, tmp_path, "types"))
    dtypes = {"BYTES": object, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
    feed = {
        name: np.array(values, dtypes.get(name) or name.lower()) for name, (_, values) in TYPES.items()
    }
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        assert {i["datatype"] for i in client.get_model_metadata("types")["inputs"]} == set(TYPES)
        for binary in (True, False):
            # The client has no JSON for half precision.
            given = [_input(n, a, n, binary or n == "FP16") for n, a in feed.items()]
            wanted = [triton.InferRequestedOutput(f"out_{n}", binary_data=binary) for n in feed]
            made = client.infer("types", given, outputs=wanted)
            for name, array in feed.items():
                found = made.as_numpy(f"out_{name}")
                if name == "BYTES":
                    found = np.array([v.decode() if isinstance(v, bytes) else v for v in found], object)
                np.testing.assert_array_equal(found, np.concatenate([array, array]), name)


def test_package_is_served_as_its_artifact(rows_package: Path, start: Start) -> None:
    server = start(rows_package, "--instances", "2", "--name", "mine")
    assert server.said("variant ") and server.model == "mine"
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        made = client.infer("mine", [_input("x", X, "FP32", True)])
        np.testing.assert_allclose(made.as_numpy("y"), np.tanh(X) * 3, rtol=1e-5)

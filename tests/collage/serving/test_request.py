"""Bodies of requests: what is read, and what each wrong one is told."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collage.serving.datatypes import NUMPY, datatype_of
from collage.serving.engine import Port
from collage.serving.errors import RequestError
from collage.serving.request import InferenceRequest, Wanted, read_request
from collage.serving.response import write_response

INPUTS = (Port("x", "FP32", (2, 2)), Port("n", "UINT8", (None,)))
OUTPUTS = (Port("y", "FP32", (2, 2)), Port("t", "BYTES", (2,)))
X = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3.5, 4]}
N = {"name": "n", "datatype": "UINT8", "shape": [3], "data": [0, 1, 255]}


def _read(content: Any, tail: bytes | None = None, most_rows: int | None = None) -> InferenceRequest:
    head = content if isinstance(content, bytes) else json.dumps(content).encode()
    length = None if tail is None else len(head)
    body = head + (tail or b"")
    return read_request(body, length, inputs=INPUTS, outputs=OUTPUTS, most_rows=most_rows)


def _one(port: Port, content: dict[str, Any], tail: bytes | None = None) -> np.ndarray:
    """What is read as the only input of a model."""
    head = json.dumps({"inputs": [{"name": port.name, "datatype": port.datatype, **content}]}).encode()
    length = None if tail is None else len(head)
    made = read_request(head + (tail or b""), length, inputs=[port], outputs=OUTPUTS)
    return made.feed[port.name]


def test_json_is_read_flat_and_nested() -> None:
    made = _read({"id": "7", "inputs": [N, X | {"data": [[1, 2], [3.5, 4]]}]})
    assert made.id == "7" and list(made.feed) == ["x", "n"]
    np.testing.assert_array_equal(made.feed["x"], np.array([[1, 2], [3.5, 4]], np.float32))
    np.testing.assert_array_equal(made.feed["n"], np.array([0, 1, 255], np.uint8))
    assert made.feed["x"].dtype == np.float32 and made.feed["x"].flags.writeable
    assert made.outputs == (Wanted("y", False), Wanted("t", False))


def test_binary_tensors_stand_behind_the_json_in_order() -> None:
    x = np.array([[1, 2], [3, 4]], "<f4")
    inputs = [
        {**N, "parameters": {"binary_data_size": 3}},
        {k: v for k, v in X.items() if k != "data"} | {"parameters": {"binary_data_size": 16}},
    ]
    del inputs[0]["data"]
    made = _read({"inputs": inputs}, bytes([0, 1, 255]) + x.tobytes())
    np.testing.assert_array_equal(made.feed["x"], x)
    np.testing.assert_array_equal(made.feed["n"], [0, 1, 255])


def test_output_overrides_what_is_said_for_all() -> None:
    content: dict[str, Any] = {
        "inputs": [X, N],
        "parameters": {"binary_data_output": True, "trace": "a"},
    }
    assert _read(content).outputs == (Wanted("y", True), Wanted("t", True))
    content["outputs"] = [{"name": "t", "parameters": {"binary_data": False}}, {"name": "y"}]
    made = _read(content)
    assert made.outputs == (Wanted("t", False), Wanted("y", True))
    assert made.parameters == {"trace": "a"}


def test_fewer_rows_than_the_batch_are_allowed_where_said() -> None:
    one = X | {"shape": [1, 2], "data": [1, 2]}
    assert _read({"inputs": [one, N]}, most_rows=3).feed["x"].shape == (1, 2)
    with pytest.raises(RequestError, match=r"must have shape \[1..3, 2\], not \[4, 2\]"):
        _read({"inputs": [X | {"shape": [4, 2]}, N]}, most_rows=3)
    with pytest.raises(RequestError, match=r"must have shape \[2, 2\], not \[1, 2\]"):
        _read({"inputs": [one, N]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"inputs": [{"name": "x", "data": [NaN]}]}', "NaN is no JSON; send such values as binary"),
        ([], "the request must be a JSON object"),
        ({}, "'inputs' must be a list"),
        ({"inputs": [3]}, "each of 'inputs' must be a JSON object"),
        ({"inputs": [{}]}, "each of 'inputs' needs a name"),
        ({"inputs": [X, X, N]}, "'x' is given twice"),
        ({"inputs": [X]}, r"inputs missing: \['n'\]; the model has \['x', 'n'\]"),
        ({"inputs": [X, N, {"name": "q"}]}, "no input 'q'"),
        ({"inputs": [X | {"datatype": "FP64"}, N]}, "'x' must be FP32, not FP64"),
        ({"inputs": [X | {"shape": [4]}, N]}, r"'x' must have shape \[2, 2\], not \[4\]"),
        ({"inputs": [X | {"shape": [2, True]}, N]}, "needs a shape, a list of integers"),
        ({"inputs": [X, N | {"shape": [-1]}]}, r"'n' must have shape \[-1\], not \[-1\]"),
        ({"inputs": [X, N | {"shape": [0]}]}, r"shape \[0\] needs 0 values, not 3"),
        ({"inputs": [X, N | {"shape": [2]}]}, r"shape \[2\] needs 2 values, not 3"),
        ({"inputs": [X | {"data": [[1, 2, 3, 4]]}, N]}, r"shape \[2, 2\] has data of shape \[1, 4\]"),
        ({"inputs": [X | {"data": [1, 2, 3, 10**400]}, N]}, "a value is too large"),
        ({"inputs": [X | {"data": [1, 2, 3.5, 10**400]}, N]}, "a value is too large"),
        ({"inputs": [X | {"data": [1, 2, 3, None]}, N]}, "values of its datatype must be numbers"),
        ({"inputs": [X | {"data": [2**70, 2, {}, 4]}, N]}, "values of its datatype must be numbers"),
        ({"inputs": [X | {"data": [[1, 2], [3]]}, N]}, "have different lengths"),
        ({"inputs": [X | {"data": [[1, 2], 3, 4]}, N]}, "have different lengths"),
        ({"inputs": [X | {"data": ["a", "b", "c", "d"]}, N]}, "values of its datatype must be numbers"),
        ({"inputs": [X | {"data": [1, 2, 3, 1e39]}, N]}, "a value is too large"),
        ({"inputs": [X | {"data": None}, N]}, "needs data: a list of values"),
        ({"inputs": [X, N | {"data": [1, 2, 256]}]}, "values must be from 0 to 255"),
        ({"inputs": [X, N | {"data": [1, 2, -1]}]}, "values must be from 0 to 255"),
        ({"inputs": [X, N | {"data": [1, 2, 2**70]}]}, "values must be from 0 to 255"),
        ({"inputs": [X, N | {"data": [1, 2, None]}]}, "values of its datatype must be integers"),
        ({"inputs": [X, N | {"data": [1, 2, 1e30]}]}, "values of its datatype must be integers"),
        ({"inputs": [X, N | {"data": [1, 2, 0.5]}]}, "values of its datatype must be integers"),
        ({"inputs": [X, N], "id": 7}, "id must be text"),
        ({"inputs": [X, N], "parameters": []}, "parameters of the request must be a JSON object"),
        ({"inputs": [X, N], "parameters": {"sequence_id": 3}}, "sequences .*leave it out"),
        ({"inputs": [X, N], "parameters": {"binary_data_output": 1}}, "must be true or false"),
        ({"inputs": [X, N], "outputs": [{"name": "q"}]}, r"no output 'q'; the model has \['y', 't'\]"),
        ({"inputs": [X, N], "outputs": 3}, "'outputs' must be a list"),
        (
            {"inputs": [X, N], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
            "asks for classification",
        ),
        (
            {"inputs": [X | {"parameters": {"binary_data_size": 16}}, N]},
            "so the header Inference-Header-Content-Length is needed",
        ),
    ],
)
def test_wrong_json_is_told_what_is_wrong(content: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        _read(content)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("size", "tail", "more", "message"),
    [
        (16, 15, {}, "needs 16 bytes, but 15 are left"),
        (16, 17, {}, "1 bytes that belong to no input"),
        (12, 12, {}, r"shape \[2, 2\] takes 16 bytes, not 12"),
        (-1, 16, {}, "must be a number of bytes"),
        ("16", 16, {}, "must be a number of bytes"),
        (16, 16, {"data": [1]}, "data both in JSON and binary"),
    ],
)
def test_wrong_binary_data_is_told(size: Any, tail: int, more: dict[str, Any], message: str) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": size}}
    with pytest.raises(RequestError, match=message):
        _read({"inputs": [x | more, N]}, bytes(tail))


@pytest.mark.parametrize("length", [0, 10_000])
def test_length_of_the_json_must_be_inside_of_the_body(length: int) -> None:
    with pytest.raises(RequestError, match="of a body of 2 bytes"):
        read_request(b"{}", length, inputs=INPUTS, outputs=OUTPUTS)


def test_bool_is_read_strictly() -> None:
    port = Port("b", "BOOL", (2,))
    given = {"shape": [2], "parameters": {"binary_data_size": 2}}
    assert _one(port, {"shape": [2], "data": [True, False]}).tolist() == [True, False]
    assert _one(port, given, b"\x01\x00").tolist() == [True, False]
    with pytest.raises(RequestError, match="must be 0 or 1"):
        _one(port, given, b"\x02\x00")
    with pytest.raises(RequestError, match="must be true or false"):
        _one(port, {"shape": [2], "data": [1, 0]})


def test_text_is_read_with_lengths() -> None:
    port = Port("t", "BYTES", (2,))
    tail = b"\x02\x00\x00\x00ab\x00\x00\x00\x00"

    def read(data: bytes) -> list[str]:
        given = {"shape": [2], "parameters": {"binary_data_size": len(data)}}
        return list(_one(port, given, data))

    assert read(tail) == ["ab", ""]
    assert _one(port, {"shape": [2], "data": ["ab", "c"]}).tolist() == ["ab", "c"]
    for wrong, message in (
        (tail[:-1], "longer than the tensor"),
        (tail[:6], "needs 2 values, not 1"),
        (b"\xff\xff\xff\xff", "longer than the tensor"),
        (b"\x01\x00\x00\x00\xff\x00\x00\x00\x00", "not UTF-8"),
    ):
        with pytest.raises(RequestError, match=message):
            read(wrong)
    with pytest.raises(RequestError, match="must be text"):
        _one(port, {"shape": [2], "data": ["ab", 3]})
    with pytest.raises(RequestError, match="'t': a value of BYTES has half of a character"):
        _one(port, {"shape": [2], "data": ["ab", "\ud800"]})


@pytest.mark.parametrize("datatype", [name for name in NUMPY if name not in ("BYTES", "BOOL")])
@pytest.mark.parametrize("binary", [True, False])
def test_numbers_go_both_ways(datatype: str, binary: bool) -> None:
    array = np.array([[0, 1], [2, 100]]).astype(NUMPY[datatype])
    request = InferenceRequest("a", {}, (Wanted("y", binary),), {"trace": 3})
    body = write_response(request, [array], model="m", version="1", datatypes={"y": datatype})
    head = json.loads(body.data[: body.json_length])
    assert (head["id"], head["parameters"]) == ("a", {"trace": 3})
    (output,) = head["outputs"]
    assert (output["shape"], output["datatype"]) == ([2, 2], datatype)
    port = Port("y", datatype, (2, 2))
    content = {key: output[key] for key in ("shape", "data", "parameters") if key in output}
    tail = body.data[body.json_length :] if body.json_length is not None else None
    assert binary == (tail is not None)
    made = _one(port, content, tail)
    assert made.dtype == array.dtype
    np.testing.assert_array_equal(made, array)


def test_values_that_json_cannot_hold_are_refused() -> None:
    request = InferenceRequest(None, {}, (Wanted("y", False),), {})
    with pytest.raises(RequestError, match="'y' has values that JSON cannot hold"):
        write_response(
            request, [np.array([np.inf], np.float32)], model="m", version="1", datatypes={"y": "FP32"}
        )


@pytest.mark.parametrize("number", [b"1e999", b"[" * 400 + b"-1e999" + b"]" * 400])
def test_parameters_that_json_cannot_hold_are_refused(number: bytes) -> None:
    head = json.dumps({"inputs": [X, N]}).encode()[:-1]
    request = _read(head + b', "parameters": {"a": ' + number + b"}}")
    array = np.zeros((2, 2), np.float32)
    with pytest.raises(RequestError, match="parameters cannot be told in JSON"):
        write_response(
            request, [array, array], model="m", version="1", datatypes={"y": "FP32", "t": "FP32"}
        )


@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BYTES"])
@pytest.mark.parametrize("data", [[], [[]], b""])
def test_tensors_of_no_values_are_read(datatype: str, data: list[Any] | bytes) -> None:
    """As a decoder's past is before the first token."""
    port, given = Port("past", datatype, (1, None, 4)), {"shape": [1, 0, 4]}
    if isinstance(data, bytes):
        made = _one(port, given | {"parameters": {"binary_data_size": 0}}, data)
    else:
        made = _one(port, given | {"data": data})
    assert made.shape == (1, 0, 4) and made.dtype == NUMPY[datatype]


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("shape", [[0, 10**30, 4], [2**62, 0, 4]])
@pytest.mark.parametrize("binary", [True, False])
def test_sizes_beyond_all_bounds_are_told(datatype: str, shape: list[int], binary: bool) -> None:
    port = Port("past", datatype, (None, None, 4))
    content = {"parameters": {"binary_data_size": 0}} if binary else {"data": []}
    with pytest.raises(RequestError, match="'past': no tensor has shape"):
        _one(port, {"shape": shape, **content}, b"" if binary else None)


def test_large_integers_are_numbers_too() -> None:
    """JavaScript writes 1e20 so."""
    made = _read({"inputs": [X | {"data": [[10**20, 2], [0.5, 4]]}, N]})
    assert made.feed["x"].tolist() == [[np.float32(1e20), 2], [0.5, 4]]


def test_null_is_as_good_as_nothing() -> None:
    """Some clients write all fields of the protocol."""
    x = {**X, "data": None, "parameters": {"binary_data_size": 16}}
    content = {"id": None, "parameters": None, "outputs": None, "inputs": [x, N | {"parameters": None}]}
    made = _read(content, np.arange(4, dtype="<f4").tobytes())
    assert made.feed["x"].tolist() == [[0, 1], [2, 3]]
    assert (made.id, made.parameters, len(made.outputs)) == (None, {}, 2)


def test_datatypes_of_onnx() -> None:
    assert NUMPY["BF16"] == ml_dtypes.bfloat16
    known = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(string)": "BYTES"}
    known |= {"tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(bool)": "BOOL"}
    known |= {"tensor(uint8)": "UINT8", "tensor(int64)": "INT64"}
    assert {each: datatype_of(each) for each in known} == known
    assert datatype_of("tensor(int4)") is None and datatype_of("sequence(tensor(float))") is None

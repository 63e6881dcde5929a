"""The body of an inference request, read: JSON, then the bytes of the tensors that are binary.

Source: Open Inference Protocol, “Inference Request JSON Object”; Triton's binary tensor data extension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.serving.datatypes import BYTES, NUMPY
from collage.serving.engine import Port
from collage.serving.errors import RequestError, bad

# To leave these out of account would change what the client asked for.
_REFUSED = {
    "sequence_id": "sequences",
    "sequence_start": "sequences",
    "sequence_end": "sequences",
    "shared_memory_region": "shared memory",
    "classification": "classification",
}
_SIZE, _BINARY, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class Wanted:
    """An output that a request asks for."""

    name: str
    binary: bool


@dataclass(frozen=True)
class InferenceRequest:
    """A request that fits the model: its id, arrays by name, outputs, and parameters of the client's own."""

    id: str | None
    feed: Mapping[str, np.ndarray]
    outputs: tuple[Wanted, ...]
    parameters: Mapping[str, Any]


def read_request(
    body: bytes,
    json_length: int | None,
    *,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    most_rows: int | None = None,
) -> InferenceRequest:
    """Read and check a request.

    Args:
        json_length: the header Inference-Header-Content-Length; None where all of the body is JSON.
        inputs, outputs: the model's.
        most_rows: the most rows of a request, where fewer than the model's batch are allowed.

    Raises:
        RequestError: it is not as the protocol or the model wants it.
    """
    if json_length is not None and not 0 < json_length <= len(body):
        raise bad(f"Inference-Header-Content-Length is {json_length}, of a body of {len(body)} bytes")
    content = _object(_parsed(body[:json_length]), "the request")
    tail = _Tail(memoryview(body)[json_length:] if json_length is not None else None)
    feed = _feed(content, {port.name: port for port in inputs}, tail, most_rows)
    tail.check_end()
    parameters = _parameters(content, "the request")
    binary = _flag(parameters, _ALL_BINARY, False)
    given_id = content.get("id")
    if given_id is not None and not isinstance(given_id, str):
        raise bad("the request's id must be text")
    return InferenceRequest(
        id=given_id,
        feed=feed,
        outputs=_outputs(content, [port.name for port in outputs], binary),
        parameters={name: value for name, value in parameters.items() if name != _ALL_BINARY},
    )


class _Tail:
    """The bytes behind the JSON object."""

    def __init__(self, data: memoryview | None) -> None:
        self._data, self._start = data, 0

    def take(self, size: object, where: str) -> memoryview:
        if self._data is None:
            raise bad(f"{where} has {_SIZE}, so the header Inference-Header-Content-Length is needed")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise bad(f"{where}: {_SIZE} must be a number of bytes")
        end = self._start + size
        if end > len(self._data):
            raise bad(
                f"{where} needs {size} bytes, but {len(self._data) - self._start} are left in the body"
            )
        found, self._start = self._data[self._start : end], end
        return found

    def check_end(self) -> None:
        if self._data is not None and self._start != len(self._data):
            raise bad(f"the body has {len(self._data) - self._start} bytes that belong to no input")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise bad("the request is nested too deep") from None
    except ValueError as error:  # of the encoding too
        raise bad(f"the request is no JSON: {error}") from None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON; send such values as binary data")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(f"{where} must be a JSON object")
    return value


def _listed(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = content.get(key)
    if not isinstance(found, list):
        raise bad(f"{key!r} must be a list of objects, one for each tensor")
    return [_object(each, f"each of {key!r}") for each in found]


def _name(content: Mapping[str, Any], key: str) -> str:
    name = content.get("name")
    if not isinstance(name, str):
        raise bad(f"each of {key!r} needs a name")
    return name


def _parameters(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = content.get("parameters")
    found = {} if given is None else _object(given, f"the parameters of {where}")
    for name, feature in _REFUSED.items():
        if found.get(name):
            raise bad(f"{where} asks for {feature} ({name!r}), which this server has not; leave it out")
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        raise bad(f"{name!r} must be true or false")
    return found


def _outputs(content: Mapping[str, Any], known: Sequence[str], binary: bool) -> tuple[Wanted, ...]:
    if not content.get("outputs"):  # all, as the protocol says
        return tuple(Wanted(name, binary) for name in known)
    found = []
    for each in _listed(content, "outputs"):
        name = _name(each, "outputs")
        if name not in known:
            raise bad(f"there is no output {name!r}; the model has {list(known)}")
        found.append(Wanted(name, _flag(_parameters(each, f"output {name!r}"), _BINARY, binary)))
    return tuple(found)


def _feed(
    content: Mapping[str, Any], ports: Mapping[str, Port], tail: _Tail, most_rows: int | None
) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for each in _listed(content, "inputs"):
        name = _name(each, "inputs")
        if name not in ports:
            raise bad(f"there is no input {name!r}; the model has {list(ports)}")
        if name in found:
            raise bad(f"input {name!r} is given twice")
        found[name] = _tensor(each, ports[name], tail, most_rows)
    if missing := [name for name in ports if name not in found]:
        raise bad(f"inputs missing: {missing}; the model has {list(ports)}")
    return {name: found[name] for name in ports}


def _tensor(content: Mapping[str, Any], port: Port, tail: _Tail, most_rows: int | None) -> np.ndarray:
    where = f"input {port.name!r}"
    if content.get("datatype") != port.datatype:
        raise bad(f"{where} must be {port.datatype}, not {content.get('datatype')}")
    shape = _shape(content.get("shape"), port, most_rows)
    parameters = _parameters(content, where)
    if _SIZE not in parameters:
        return _from_json(content.get("data"), port, shape)
    data = tail.take(parameters[_SIZE], where)
    if content.get("data") is not None:
        raise bad(f"{where} has data both in JSON and binary; give one")
    if port.datatype == BYTES:
        return _texts(data, shape, where)
    dtype = NUMPY[port.datatype].newbyteorder("<")
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise bad(
            f"{where} of {port.datatype} and shape {list(shape)} takes {math.prod(shape) * dtype.itemsize} bytes, "
            f"not {len(data)}"
        )
    if port.datatype == "BOOL" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise bad(f"{where}: each byte of BOOL must be 0 or 1")
    # Of the machine's own byte order, and writable as other arrays are.
    return _shaped(np.frombuffer(data, dtype).astype(NUMPY[port.datatype]), shape, where)


def _shaped(values: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Values, of which there are as many as a shape has; beside a size of 0 others may be beyond all bounds."""
    try:
        return values.reshape(shape)
    except ValueError:
        raise bad(f"{where}: no tensor has shape {list(shape)}; give smaller sizes") from None


def _shape(given: Any, port: Port, most_rows: int | None) -> tuple[int, ...]:
    wanted = list(port.shape)
    if not isinstance(given, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in given):
        raise bad(f"input {port.name!r} needs a shape, a list of integers")
    fewer = most_rows is not None and bool(wanted)
    fits = len(given) == len(wanted) and all(
        0 < size <= most_rows
        if fewer and i == 0 and most_rows is not None
        else size >= 0  # a decoder's past may be empty; the model's session knows its range
        if want is None
        else size == want
        for i, (size, want) in enumerate(zip(given, wanted, strict=True))
    )
    if not fits:
        said: list[Any] = [-1 if size is None else size for size in wanted]
        if fewer:
            said[0] = f"1..{most_rows}"
        text = ", ".join(map(str, said))
        raise bad(f"input {port.name!r} must have shape [{text}], not {given}")
    return tuple(given)


def _from_json(data: Any, port: Port, shape: tuple[int, ...]) -> np.ndarray:
    where = f"input {port.name!r}"
    if not isinstance(data, list):
        raise bad(f"{where} needs data: a list of values, or binary data")
    dtype = NUMPY[port.datatype]
    if port.datatype == BYTES:
        flat = _flattened(data)
        if not all(isinstance(text, str) for text in flat):
            raise bad(f"{where}: values of BYTES must be text")
        try:
            for text in flat:
                text.encode()
        except UnicodeEncodeError:
            raise bad(f"{where}: a value of BYTES has half of a character") from None
        found = np.empty(len(flat), object)
        found[:] = flat
        nested = _depth(data)
    else:
        try:
            found = np.asarray(data)
        except OverflowError:
            raise bad(f"{where}: a value is too large for its datatype") from None
        except ValueError:
            raise bad(f"{where}: lists in its data have different lengths") from None
        nested = found.ndim
        if not found.size:
            found = found.astype(dtype)
        elif dtype.kind in "iu" and found.dtype.kind in "fO":
            found = _integers(data, found.shape, where)
        elif dtype.kind != "b" and found.dtype.kind == "O":
            found = _floats(data, found.shape, where)
        found = _converted(found, dtype, where)
    if found.size != math.prod(shape):
        raise bad(f"{where} of shape {list(shape)} needs {math.prod(shape)} values, not {found.size}")
    # Empty lists do not tell how deep a tensor of no values is.
    if found.size and nested > 1 and found.ndim > 1 and found.shape != shape:
        raise bad(
            f"{where} of shape {list(shape)} has data of shape {list(found.shape)}; nest it so, or not"
        )
    return _shaped(found, shape, where)


def _integers(data: list[Any], shape: tuple[int, ...], where: str) -> np.ndarray:
    """Integers for which numpy has no common type, as they are."""
    flat = _flattened(data)
    if not all(type(value) is int for value in flat):
        raise bad(f"{where}: values of its datatype must be integers")
    return np.array(flat, object).reshape(shape)


def _floats(data: list[Any], shape: tuple[int, ...], where: str) -> np.ndarray:
    """Numbers of which some are integers too large for numpy's own."""
    try:
        return np.array([float(value) for value in _flattened(data)]).reshape(shape)
    except (TypeError, ValueError):
        raise bad(f"{where}: values of its datatype must be numbers") from None
    except OverflowError:
        raise bad(f"{where}: a value is too large for its datatype") from None


def _converted(found: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    allowed = {"b": "b", "i": "iuO", "u": "iuO"}.get(dtype.kind, "iuf")
    if found.dtype.kind not in allowed:
        kind = {"b": "true or false", "i": "integers", "u": "integers"}.get(dtype.kind, "numbers")
        raise bad(f"{where}: values of its datatype must be {kind}")
    if dtype.kind in "iu" and found.size:
        bounds = np.iinfo(dtype)
        if int(found.min()) < bounds.min or int(found.max()) > bounds.max:
            raise bad(f"{where}: values must be from {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):
        converted = found.astype(dtype)
    if dtype.kind not in "biu" and not np.isfinite(converted.astype(np.float64)).all():
        raise bad(f"{where}: a value is too large for its datatype")
    return converted


def _flattened(data: list[Any]) -> list[Any]:
    while data and all(isinstance(each, list) for each in data):
        data = [value for each in data for value in each]
    return data


def _depth(data: Any) -> int:
    depth = 0
    while isinstance(data, list) and data:
        data, depth = data[0], depth + 1
    return depth


def _texts(data: memoryview, shape: tuple[int, ...], where: str) -> np.ndarray:
    """BYTES: of each value its length in four bytes, then its bytes."""
    texts: list[str] = []
    start = 0
    try:
        while start < len(data):
            head = start + _LENGTH_BYTES
            end = head + int.from_bytes(data[start:head], "little")
            if head > len(data) or end > len(data):
                raise bad(f"{where}: a value of BYTES is longer than the tensor")
            texts.append(bytes(data[head:end]).decode())
            start = end
    except UnicodeDecodeError:
        raise bad(f"{where}: the model reads text, and a value of BYTES is not UTF-8") from None
    if len(texts) != math.prod(shape):
        raise bad(f"{where} of shape {list(shape)} needs {math.prod(shape)} values, not {len(texts)}")
    found = np.empty(len(texts), object)
    found[:] = texts
    return _shaped(found, shape, where)


__all__ = ["InferenceRequest", "RequestError", "Wanted", "read_request"]

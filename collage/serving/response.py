"""The body of an inference response, written: JSON, then the bytes of the tensors that are binary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.serving.datatypes import BYTES, NUMPY
from collage.serving.errors import bad
from collage.serving.request import InferenceRequest


@dataclass(frozen=True)
class Body:
    """A response; `json_length` is None where all of it is JSON."""

    data: bytes
    json_length: int | None


def write_response(
    request: InferenceRequest,
    arrays: Sequence[np.ndarray],
    *,
    model: str,
    version: str,
    datatypes: dict[str, str],
) -> Body:
    """The response to a request.

    Args:
        arrays: the outputs that the request asks for, in its order.
        datatypes: the protocol's datatype of each output.

    Raises:
        RequestError: an output has values that JSON cannot hold.
    """
    described, tail = [], []
    for wanted, array in zip(request.outputs, arrays, strict=True):
        datatype = datatypes[wanted.name]
        output: dict[str, Any] = {
            "name": wanted.name,
            "shape": list(array.shape),
            "datatype": datatype,
        }
        if wanted.binary:
            tail.append(_bytes(array, datatype))
            output["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            output["data"] = _values(array, datatype, wanted.name)
        described.append(output)
    content: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        content["id"] = request.id
    if request.parameters:
        content["parameters"] = dict(request.parameters)
    content["outputs"] = described
    try:
        head = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError):  # all else was checked
        raise bad("the request's parameters cannot be told in JSON; leave them out") from None
    return Body(b"".join([head, *tail]), len(head) if tail else None)


def _bytes(array: np.ndarray, datatype: str) -> bytes:
    if datatype != BYTES:
        return array.astype(NUMPY[datatype].newbyteorder("<"), copy=False).tobytes()
    encoded = [_text(value) for value in array.ravel().tolist()]
    return b"".join(len(value).to_bytes(4, "little") + value for value in encoded)


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _values(array: np.ndarray, datatype: str, name: str) -> list[Any]:
    """The values of a tensor in one flat list."""
    if datatype == BYTES:
        try:
            return [_text(value).decode() for value in array.ravel().tolist()]
        except UnicodeDecodeError:
            raise bad(f"output {name!r} is no UTF-8 text; ask for binary data") from None
    if array.dtype.kind in "biu":
        return list(array.ravel().tolist())
    # Small floats have no JSON of their own.
    plain = array.ravel() if array.dtype == np.float64 else array.ravel().astype(np.float32)
    if not np.isfinite(plain).all():
        raise bad(
            f"output {name!r} has values that JSON cannot hold (infinite or NaN); ask for binary data"
        )
    return list(plain.tolist())

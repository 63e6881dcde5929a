"""Functions of another opset than the model's: all get one, so that they can be inlined.

An operator that two opsets have in the same version is the same in both. So all are relabeled with an opset that
changes no operator in use, the model's own if that does; else onnx's converter brings the model to a higher one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.repairs.walk import bodies_of, nodes_of

_SMALL_BYTES = 1024

_Holder: TypeAlias = onnx.ModelProto | onnx.FunctionProto


def give_one_opset(proto: onnx.ModelProto) -> bool:
    """Give functions the opset of the model or the model that of its functions, in place; whether any had another.

    Raises:
        ModelError: neither can be done.
    """
    domains = {opset.domain for function in proto.functions for opset in function.opset_import}
    changed = [_settle(proto, domain) for domain in sorted(domains)]
    return any(changed)


def _settle(proto: onnx.ModelProto, domain: str) -> bool:
    own = _version(proto, domain)
    functions = [function for function in proto.functions if _version(function, domain)]
    others = {_version(function, domain) for function in functions} - {own}
    if not own or not others:
        return False
    versions = (own, *sorted(others, reverse=True))
    fitting = [v for v in versions if not any(_changed(function, domain, v) for function in functions)]
    same = [v for v in fitting if not _changed(proto, domain, v)]
    higher = [v for v in fitting if v > own]
    chosen = (same + higher or [own])[0]
    for function in functions:
        if changed := _changed(function, domain, chosen):
            _refuse(f"function {function.name!r}", _version(function, domain), chosen, changed)
    if _changed(proto, domain, chosen):
        _convert(proto, domain, chosen)
    for holder in (proto, *functions):
        _relabel(holder, domain, chosen)
    return True


def _refuse(what: str, own: int, wanted: int, changed: list[str]) -> None:
    raise ModelError(
        f"{what} is of opset {own} and cannot be brought to {wanted}, which other parts of the model have "
        f"({', '.join(changed)}); export the model with one opset"
    )


def _version(holder: _Holder, domain: str) -> int:
    return next((opset.version for opset in holder.opset_import if opset.domain == domain), 0)


def _relabel(holder: _Holder, domain: str, version: int) -> None:
    for opset in holder.opset_import:
        if opset.domain == domain:
            opset.version = version


def _changed(holder: _Holder, domain: str, version: int) -> list[str]:
    """The operators in use that another version of their domain has otherwise."""
    own = _version(holder, domain)
    used = {node.op_type for node in _nodes(holder) if node.domain == domain}
    return [op for op in sorted(used) if _since(op, own, domain) != _since(op, version, domain)]


def _nodes(holder: _Holder) -> Iterator[onnx.NodeProto]:
    return nodes_of(holder.graph if isinstance(holder, onnx.ModelProto) else holder)


def _since(op: str, version: int, domain: str) -> int:
    """The version of an operator; 0 for one that ONNX does not know, which has no versions."""
    try:
        return int(onnx.defs.get_schema(op, version, domain).since_version)
    except onnx.defs.SchemaError:
        return 0


def _convert(proto: onnx.ModelProto, domain: str, target: int) -> None:
    """Bring the main graph to a higher opset, in place."""
    own, changed = _version(proto, domain), _changed(proto, domain, target)
    if domain or any(True for node in proto.graph.node for _ in bodies_of(node)):  # it skips bodies
        _refuse("the model", own, target, changed)
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    del light.functions[:]
    known = {value.name for value in light.graph.input}
    for tensor in [t for t in light.graph.initializer if t.ByteSize() > _SMALL_BYTES]:
        if tensor.name not in known:  # the converter needs only its type
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.graph.input.append(value)
        light.graph.initializer.remove(tensor)
    try:
        converted = onnx.version_converter.convert_version(light, target)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        _refuse("the model", own, target, [*changed, reason])
    mine = {tensor.name for tensor in proto.graph.initializer}
    del proto.graph.node[:]
    proto.graph.node.extend(converted.graph.node)
    proto.graph.initializer.extend(t for t in converted.graph.initializer if t.name not in mine)

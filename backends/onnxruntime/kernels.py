"""Which operators ONNX Runtime has kernels for, by operator set and dtypes.

The installed build itself tells the CPU's. A build with other providers opens all of them when it is
asked, and crashes where a library of one is missing: there compiling decides. `cuda_operators` lists
the CUDA provider's. Providers that compile graphs register no kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from collage.backends.onnxruntime import cuda_operators as cuda_ops
from collage.backends.support.ort_session import PROVIDERS, ort
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

# ONNX's names of element types, as kernel definitions have them.
_ELEMENT: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "object": "string",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
}
# With other providers, asking for kernels opens all of them, and crashes where one cannot be opened.
_ASKABLE = {PROVIDERS["cpu"], "AzureExecutionProvider"}


def refusal(index: GraphIndex, node: NodeInfo, ep: str) -> str | None:
    """Why the provider `ep` does not take a node; None where it does, or compiling decides."""
    since = _since_version(node.domain, node.op_type, node.opset)
    if since is None:
        return f"onnxruntime does not know the operator {node.op} of opset {node.opset}"
    if ep == "cuda":
        return _refuse_on_cuda(node, since)
    found = _cpu_kernels().get((node.domain, node.op_type))
    if ep != "cpu" or found is None:
        return None  # functions are expanded into other operators
    fitting = [k for k in found if k.version_range[0] <= since <= k.version_range[1]]
    if not fitting:
        return f"onnxruntime has no kernel for {node.op} of opset {node.opset}"
    return _refuse_dtypes(index, node, fitting)


@lru_cache(maxsize=1)
def _schemas() -> dict[tuple[str, str], list[Any]]:
    """Operator schemas of this build by (domain, name), oldest first."""
    from onnxruntime.capi import _pybind_state

    found: dict[tuple[str, str], list[Any]] = {}
    for schema in _pybind_state.get_all_operator_schema():
        found.setdefault((_domain(schema.domain), schema.name), []).append(schema)
    for versions in found.values():
        versions.sort(key=lambda schema: schema.since_version)
    return found


def _refuse_on_cuda(node: NodeInfo, since: int) -> str | None:
    known = node.op_type in cuda_ops.ONNX_OPERATORS
    if node.domain or (known and since < cuda_ops.WITHOUT_SINCE.get(node.op_type, since + 1)):
        return None
    return f"onnxruntime has no cuda kernel for {node.op} of opset {node.opset}"


@lru_cache(maxsize=1)
def _cpu_kernels() -> dict[tuple[str, str], list[Any]]:
    """Kernels registered for the CPU by (domain, operator); empty where the build cannot be asked."""
    from onnxruntime.capi import _pybind_state

    found: dict[tuple[str, str], list[Any]] = {}
    if not set(ort().get_available_providers()) <= _ASKABLE:
        return found
    for kernel in _pybind_state.get_all_opkernel_def():
        if kernel.provider == PROVIDERS["cpu"]:
            found.setdefault((_domain(kernel.domain), kernel.op_name), []).append(kernel)
    return found


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _schema(domain: str, op_type: str, opset: int) -> Any:
    fitting = [s for s in _schemas().get((domain, op_type), ()) if s.since_version <= opset]
    return fitting[-1] if fitting else None


def _since_version(domain: str, op_type: str, opset: int) -> int | None:
    schema = _schema(domain, op_type, opset)
    return None if schema is None else int(schema.since_version)


def _refuse_dtypes(index: GraphIndex, node: NodeInfo, kernels: Sequence[Any]) -> str | None:
    schema = _schema(node.domain, node.op_type, node.opset)
    used = _dtypes_by_parameter(index, node, schema)
    # Without a kernel for half precision a node runs in single precision, between casts that sessions
    # insert.
    widened = [(keys, dtype.replace("float16", "float")) for keys, dtype in used]
    if any(
        _accepts(kernel.type_constraints, dtypes) for kernel in kernels for dtypes in (used, widened)
    ):
        return None
    dtypes = ", ".join(sorted({t.removeprefix("tensor(").rstrip(")") for _, t in used}))
    return f"onnxruntime has no kernel for {node.op} of {dtypes}"


def _dtypes_by_parameter(
    index: GraphIndex, node: NodeInfo, schema: Any
) -> list[tuple[tuple[str, str], str]]:
    """For each given input and output: (its type parameter, its own name) and its dtype."""
    used = []
    for names, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        if not formals:
            continue
        for position, name in enumerate(names):
            spec = index.values.get(name)
            if spec is None or spec.dtype == "unknown":
                continue
            formal = formals[min(position, len(formals) - 1)]
            element = _ELEMENT.get(spec.dtype, spec.dtype)
            used.append(((formal.typeStr, formal.name), f"tensor({element})"))
    return used


def _accepts(constraints: Mapping[str, list[str]], used: Sequence[tuple[tuple[str, str], str]]) -> bool:
    """True when a kernel's constraints (by type parameter or by name) allow every dtype used."""
    for keys, dtype in used:
        for key in keys:
            if key in constraints and dtype not in constraints[key]:
                return False
    return True

"""Attention masks that come in from outside, for OpenVINO in bf16.

OpenVINO 2026.4 fuses an attention into one kernel. In bf16 that kernel reads a mask that is broadcast and
stands right at an input of the model as if it were bf16, though it is float32: the numbers are plainly
wrong (errors above 1). Any computation between the input and the kernel cures it, so such an input gets one
that changes nothing: a Clamp to all that bf16 can hold.
"""

from __future__ import annotations

from typing import Any

# What only moves or repeats elements, and is dropped or done on the kernel's own account.
_LAYOUT = {"Broadcast", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_MASKED_BY = {"Add", "Divide", "Multiply", "Select", "Subtract"}
_LARGEST_BF16 = 3.3895e38


def shield_masks(model: Any, ov: Any) -> bool:
    """Clamp float inputs of a model that mask what a softmax reads.

    Args:
        model: an OpenVINO model; changed in place.
        ov: the module `openvino`.

    Returns:
        Whether there were any.
    """
    found: dict[int, Any] = {}
    for node in model.get_ops():
        if node.get_type_name() == "Softmax":
            found |= {id(p): p for p in _inputs_before(node.input_value(0).get_node(), True)}
    for parameter in found.values():
        readers = parameter.output(0).get_target_inputs()
        clamped = ov.opset13.clamp(parameter, -_LARGEST_BF16, _LARGEST_BF16)
        for reader in readers:
            reader.replace_source_output(clamped.output(0))
    if found:
        model.validate_nodes_and_infer_types()
    return bool(found)


def _inputs_before(node: Any, masked: bool) -> list[Any]:
    """Float inputs that reach a node through layout alone, or through what masks first."""
    kind = node.get_type_name()
    if kind == "Parameter":
        return [node] if node.get_element_type().is_real() else []
    if kind not in _LAYOUT and not (masked and kind in _MASKED_BY):
        return []
    sources = [node.input_value(i).get_node() for i in range(node.get_input_size())]
    return [p for source in sources for p in _inputs_before(source, masked and kind in _MASKED_BY)]

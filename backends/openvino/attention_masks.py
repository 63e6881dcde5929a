"""Attention masks that are inputs of the model, for OpenVINO in bf16.

In bf16 OpenVINO 2026.4's fused attention reads a broadcast float32 mask as bf16 where it is an input of
the model, and gives wrong numbers. Any computation between the two prevents that, so such an input gets
a Clamp to the range of bf16.
"""

from __future__ import annotations

from typing import Any

# These only move or repeat elements, and the kernel absorbs them.
_LAYOUT = {"Broadcast", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_MASKED_BY = {"Add", "Divide", "Multiply", "Select", "Subtract"}
_LARGEST_BF16 = 3.3895e38


def shield_masks(model: Any, ov: Any) -> bool:
    """Clamp float inputs of a model that mask the input of a softmax.

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
    """Float inputs that reach a node through layout operators alone, or through masking ones first."""
    kind = node.get_type_name()
    if kind == "Parameter":
        return [node] if node.get_element_type().is_real() else []
    if kind not in _LAYOUT and not (masked and kind in _MASKED_BY):
        return []
    sources = [node.input_value(i).get_node() for i in range(node.get_input_size())]
    return [p for source in sources for p in _inputs_before(source, masked and kind in _MASKED_BY)]

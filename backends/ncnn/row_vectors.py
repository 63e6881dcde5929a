"""Lets products of one row read their input as a vector, not as a matrix of one row.

ncnn's InnerProduct has a faster kernel for a vector (docs/results/runtime-settings.md). pnnx keeps the
leading one of a region that begins at such a product.

Source: `InnerProduct_x86::forward` in ncnn, which checks the number of dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

# These compute the same of a vector and of a matrix of one row; so does a Softmax over the row.
_ALIKE = {
    "Clip",
    "Dropout",
    "ELU",
    "Flatten",
    "GELU",
    "HardSigmoid",
    "HardSwish",
    "InnerProduct",
    "Input",
    "ReLU",
    "SELU",
    "Sigmoid",
    "Split",
    "Swish",
    "TanH",
}
_OVER_THE_ROW = "0=1"
# Of a reshape: to one row.
_ONE_ROW = "1=1"


def as_vectors(parameters: str, rows: Sequence[str]) -> str:
    """The net with products that read vectors, where all of its layers allow that.

    Args:
        parameters: the text of ncnn's `.param` file.
        rows: names of the inputs that are matrices of one row.

    Returns:
        The text. Outputs may lose their leading one.
    """
    magic, counts, *lines = parameters.splitlines()
    layers = [words for line in lines if (words := line.split())]
    if not all(map(_is_alike, layers)) or all(words[0] != "InnerProduct" for words in layers):
        return parameters
    found: list[list[str]] = []
    for words in layers:
        read, made = int(words[2]), int(words[3])
        names = [f"{name}_vector" if name in rows else name for name in words[4 : 4 + read]]
        rest = [word for word in words[4 + read :] if words[0] != "Reshape" or word != _ONE_ROW]
        found.append([*words[:4], *names, *rest])
        if words[0] == "Input" and made == 1 and words[4] in rows:
            found.append(
                ["Reshape", f"{words[4]}_to_vector", "1", "1", words[4], f"{words[4]}_vector", "0=-1"]
            )
    added = len(found) - len(layers)
    layer_count, blob_count = (int(count) + added for count in counts.split())
    return "\n".join([magic, f"{layer_count} {blob_count}", *map(" ".join, found)]) + "\n"


def _is_alike(words: Sequence[str]) -> bool:
    kind, settings = words[0], words[4 + int(words[2]) + int(words[3]) :]
    if kind == "Softmax":
        return _OVER_THE_ROW in settings
    if kind == "Reshape":
        return settings[0].startswith("0=") and settings[1:] in ([], [_ONE_ROW])
    return kind in _ALIKE

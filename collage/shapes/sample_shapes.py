"""Shapes of sample inputs in .npz files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.partitioner.ingest.model_dims import ModelDims
from collage.shapes.resolve import sizes_of

# Of one file: the shape of each array by its name there.
FileShapes = Mapping[str, tuple[int, ...]]


def sample_files(path: Path) -> list[Path]:
    """The files of samples: the path itself, or the .npz files in it, by name.

    Raises:
        BadInputError: the folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.npz"))
    if not files:
        raise BadInputError(f"folder {str(path)!r} holds no .npz file with sample inputs")
    return files


def in_group(name: str, inputs: Collection[str]) -> tuple[str, str]:
    """The group and the input that an array of a file belongs to; the input is empty for other arrays."""
    if name in inputs:
        return "", name
    own = max((known for known in inputs if name.endswith(f"/{known}")), key=len, default="")
    return (name.removesuffix(f"/{own}"), own) if own else ("", "")


def file_shapes(path: Path) -> list[FileShapes]:
    """The shapes of all arrays of each file.

    Raises:
        BadInputError: a file cannot be read.
    """
    found: list[FileShapes] = []
    for file in sample_files(path):
        try:
            with np.load(file, allow_pickle=False) as stored:
                found.append({name: stored[name].shape for name in stored.files})
        except (OSError, ValueError) as error:
            raise BadInputError(f"inputs file {str(file)!r} cannot be read as .npz: {error}") from None
    return found


def sizes_of_samples(model: ModelDims, files: Sequence[FileShapes]) -> list[dict[str, int]]:
    """The size of each free dimension in each group of samples; groups that lack inputs are left out.

    Raises:
        BadInputError: a rank is wrong, or sizes contradict the model or each other; the message names the
            input and the axis.
    """
    ranks = {tensor.name: len(tensor.dims) for tensor in model.inputs}
    found = []
    for shapes in files:
        groups: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            group, own = in_group(name, ranks)
            if own:
                groups.setdefault(group, {})[own] = shape
        for own_shapes in groups.values():
            if all(len(shape) == ranks[name] + 1 for name, shape in own_shapes.items()):
                own_shapes = {name: shape[1:] for name, shape in own_shapes.items()}  # several samples
            sizes = sizes_of(model, own_shapes, "inputs")
            if sizes.keys() >= set(model.free):
                found.append(sizes)
    return found

"""Labels from a file: one sample for each entry of the first axis."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from collage.metrics.metric import LABELS, Arrays
from collage.partitioner.errors import BadInputError

IN_INPUTS = "labels"
"""Arrays of this name, or of one that begins with it and a point, are labels in a file of inputs."""


def is_label(name: str) -> bool:
    """Whether an array in a file of inputs is a label."""
    return name == IN_INPUTS or name.startswith(f"{IN_INPUTS}.")


def read_labels(path: Path, samples: int) -> list[Arrays]:
    """The label of each sample.

    Args:
        path: an .npy file, or an .npz file with arrays by name.
        samples: how many there are.

    Raises:
        BadInputError: the file cannot be read, or has labels of another number of samples.
    """
    return split_labels(_arrays(path), samples, f"labels file {str(path)!r}")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        found = np.load(path, allow_pickle=False)
        return {LABELS: found} if isinstance(found, np.ndarray) else dict(found)
    except (OSError, ValueError, EOFError) as error:
        raise BadInputError(
            f"labels file {str(path)!r} cannot be read as .npy or .npz: {error}"
        ) from None


@contextmanager
def labeled_inputs(inputs: Path | None, labels: Path | None) -> Iterator[Path | None]:
    """A file of inputs that has the labels too, as a server takes them; the given one without labels.

    Raises:
        BadInputError: there are labels without inputs, or a file cannot be read.
    """
    if labels is None:
        yield inputs
        return
    if inputs is None:
        raise BadInputError("labels belong to samples: give these with --inputs")
    if inputs.is_dir():
        raise BadInputError(
            "a server takes labels beside samples in one file: give one .npz with --inputs"
        )
    if not zipfile.is_zipfile(inputs):
        raise BadInputError(f"inputs file {str(inputs)!r} cannot be read as .npz")
    arrays = {
        IN_INPUTS if name == LABELS else f"{IN_INPUTS}.{name}": array
        for name, array in _arrays(labels).items()
    }
    with tempfile.TemporaryDirectory(prefix="collage-labels-") as folder:
        path = Path(folder) / "inputs.npz"
        shutil.copyfile(inputs, path)
        with zipfile.ZipFile(path, "a") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
        yield path


def split_labels(arrays: Arrays, samples: int, where: str) -> list[Arrays]:
    """The label of each sample, from arrays with a leading axis.

    Raises:
        BadInputError: an array has another number of samples, or there is none.
    """
    if not arrays:
        raise BadInputError(f"{where} holds no array")
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != samples:
            raise BadInputError(
                f"{where}: {name!r} has {len(array) if array.ndim else 1} labels, and there are "
                f"{samples} samples"
            )
    return [{name: array[i] for name, array in arrays.items()} for i in range(samples)]

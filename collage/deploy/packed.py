"""What a package holds of an artifact, whether it has one size of each dimension or a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.artifact.unpack import unpack
from collage.artifact.unpack_shapes import UnpackedPlan, unpack_shapes
from collage.artifact.verification import Verification
from collage.artifact.verify import samples_of
from collage.backends.contract import SubModel
from collage.partitioner.candidate import Instances
from collage.partitioner.emit.metadata import metadata_of
from collage.partitioner.ingest.expressions import parse_sum
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.shapes.classes import SHAPES_KEY, specs_at


@dataclass(frozen=True)
class Packed:
    """The parts of an artifact.

    Args:
        partitions: each once, with its target.
        inputs: of the model.
        outputs: of the model.
        constants: outputs that are weights.
        samples: inputs of the self-test.
        tolerance: how much values may differ from the reference.
        axes: of each input and output as sizes and names; empty where all sizes are known.
        dims: the lowest and highest size of each free dimension, and its step.
        classes: the largest extent of each class of shapes, and the positions of its partitions in order.
        instances: how many requests it was tuned to run at once; None where it was tuned for one at a time.
    """

    partitions: tuple[tuple[SubModel, Target], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: Mapping[str, np.ndarray]
    samples: Sequence[Mapping[str, np.ndarray]]
    tolerance: float
    axes: Mapping[str, tuple[int | str | None, ...]]
    dims: Mapping[str, tuple[int, int, int]]
    classes: tuple[tuple[int | None, tuple[int, ...]], ...]
    instances: Instances | None = None

    @property
    def is_free(self) -> bool:
        """Whether it has free dimensions."""
        return bool(self.dims)

    def described(self, specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        """Inputs or outputs of the model as a manifest has them; free dimensions by name, with an example."""
        return [
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "shape": list(self.axes.get(spec.name, spec.shape or ())),
                **self._example(spec.name),
            }
            for spec in specs
        ]

    def _example(self, name: str) -> dict[str, Any]:
        first = self.samples[0] if self.is_free else {}
        return {"example": list(first[name].shape)} if name in first else {}

    def by_size(
        self,
        partitions: Sequence[Mapping[str, Any]],
        classes: Sequence[tuple[int | None, Sequence[int]]],
    ) -> dict[str, Any]:
        """The one part that runs partitions by the sizes of the inputs, as a manifest has it."""
        made = [spec for spec in self.outputs if spec.name not in self.constants]
        return {
            "runtime": "by_size",
            "target": ", ".join(dict.fromkeys(part["target"] for part in partitions)),
            "files": {},
            "settings": {},
            "inputs": self.described(self.inputs),
            "outputs": self.described(made),
            "partitions": list(partitions),
            "dims": {name: list(ends) for name, ends in self.dims.items()},
            "sums": self._sums(),
            "classes": [{"up_to": up_to, "partitions": list(own)} for up_to, own in classes],
        }

    def _sums(self) -> dict[str, tuple[dict[str, int], int]]:
        """Of each size of an input that follows from dimensions: how often it has each of them, and what is added."""
        names = dict.fromkeys(
            dim for spec in self.inputs for dim in self.axes[spec.name] if isinstance(dim, str)
        )
        found = {name: parse_sum(name) for name in names if name not in self.dims}
        return {
            name: (dict(total.terms), total.constant)
            for name, total in found.items()
            if total is not None and all(dim in self.dims for dim in total.names)
        }


def packed(artifact: Path, folder: Path) -> Packed:
    """Take an artifact apart into a folder.

    Raises:
        BadInputError: the file is no artifact.
    """
    if SHAPES_KEY in metadata_of(artifact):
        return _with_shapes(artifact, folder)
    parts = unpack(artifact, folder, None)
    verification = Verification.from_text(parts.verification)
    return Packed(
        partitions=tuple(zip(parts.models, parts.targets, strict=True)),
        inputs=parts.inputs,
        outputs=parts.outputs,
        constants=parts.constants,
        samples=samples_of(verification, parts.inputs),
        tolerance=max(verification.tolerance.values(), default=0.0),
        axes={},
        dims={},
        classes=((None, tuple(range(len(parts.models)))),),
        instances=parts.instances,
    )


def _with_shapes(artifact: Path, folder: Path) -> Packed:
    parts = unpack_shapes(artifact, folder, None)
    served = parts.served
    places: dict[tuple[Path, Target, tuple[str, ...]], int] = {}
    partitions: list[tuple[SubModel, Target]] = []

    def positions(plan: UnpackedPlan) -> tuple[int, ...]:
        found = []
        for model, target in zip(plan.models, plan.targets, strict=True):
            key = model.path, target, tuple(s.name for s in (*model.inputs, *model.outputs))
            if key not in places:
                places[key] = len(partitions)
                partitions.append((model, target))
            found.append(places[key])
        return tuple(found)

    proofs = [Verification.from_text(proof.plan) for proof in served.proofs]
    samples = [
        samples_of(verification, specs_at(parts.inputs, served.axes, proof.sizes))[0]
        for verification, proof in zip(proofs, served.proofs, strict=True)
    ]
    return Packed(
        classes=tuple(
            (one.up_to, positions(plan)) for one, plan in zip(served.classes, parts.plans, strict=True)
        ),
        partitions=tuple(partitions),
        inputs=parts.inputs,
        outputs=parts.outputs,
        constants=parts.constants,
        samples=samples,
        tolerance=max((t for proof in proofs for t in proof.tolerance.values()), default=0.0),
        axes=served.axes,
        dims={name: (dim.low, dim.high, dim.step) for name, dim in served.space.dims.items()},
    )

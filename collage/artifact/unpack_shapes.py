"""An artifact with free dimensions unpacked: the partitions of all its plans as models on disk, kept in the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.artifact.unpack import (
    Way,
    constants_of,
    described,
    kept_apart,
    read_constants,
    specs,
    write_constants,
)
from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.shapes.classes import SHAPES_KEY, ServedShapes

# Part of every folder's name: raise it when parts are made in another way.
_EDITION = 3
_CONTENTS = "shapes.json"


@dataclass(frozen=True)
class UnpackedPlan:
    """A plan's partitions in execution order; equal ones share a file."""

    models: tuple[SubModel, ...]
    targets: tuple[Target, ...]
    lanes: int


@dataclass(frozen=True)
class UnpackedShapes:
    """What `load` needs of an artifact with free dimensions."""

    served: ServedShapes
    plans: tuple[UnpackedPlan, ...]  # of each class
    hot: tuple[UnpackedPlan | None, ...]  # of each class
    inputs: tuple[TensorSpec, ...]  # the model's inputs
    outputs: tuple[TensorSpec, ...]  # the model's outputs
    constants: Mapping[str, np.ndarray]  # outputs that are weights


def unpack_shapes(path: Path, work_dir: Path, cache_dir: Path | None) -> UnpackedShapes:
    """Unpack an artifact, or find what was unpacked before.

    Args:
        work_dir: an empty folder that lives as long as the result is used.
        cache_dir: where unpacked artifacts are kept, or None.

    Raises:
        ModelError, BadInputError: the file is no artifact with free dimensions.
    """
    way = Way(_take_apart, _write, _read)
    return kept_apart(path, work_dir, cache_dir, f"shapes-{_EDITION}", way)


def _take_apart(path: Path, folder: Path) -> UnpackedShapes:
    # They read ONNX, which takes a second to import.
    from collage.model.sub_models import RegionFiles
    from collage.partitioner.emit.annotate import read_plan
    from collage.partitioner.emit.plan_json import decode_plan

    stored = read_plan(path, mapped=True)
    model, index = stored.model, stored.model.index
    served = ServedShapes.from_text(stored.metadata[SHAPES_KEY])
    known = {
        text: decode_plan(model, text)
        for one in served.classes
        for text in (one.plan.plan, *([] if one.hot is None else [one.hot.plan]))
    }
    done = {nodes for content in known.values() for nodes in content.prepared}
    regions = RegionFiles(model, folder, prepared=done, mapped=True)

    def unpacked(text: str) -> UnpackedPlan:
        plan = known[text].plan
        return UnpackedPlan(
            tuple(regions.get(partition.nodes) for partition in plan.partitions),
            tuple(partition.target for partition in plan.partitions),
            plan.lanes,
        )

    outputs = tuple(index.values[name] for name in index.outputs)
    return UnpackedShapes(
        served=served,
        plans=tuple(unpacked(one.plan.plan) for one in served.classes),
        hot=tuple(None if one.hot is None else unpacked(one.hot.plan) for one in served.classes),
        inputs=tuple(index.values[name] for name in index.inputs),
        outputs=outputs,
        constants=constants_of(model, outputs),
    )


def _write(parts: UnpackedShapes, folder: Path) -> None:
    contents = {
        "constants": write_constants(parts.constants, folder),
        "served": parts.served.to_text(),
        "plans": [_plan_json(plan, folder) for plan in parts.plans],
        "hot": [None if plan is None else _plan_json(plan, folder) for plan in parts.hot],
        "inputs": described(parts.inputs),
        "outputs": described(parts.outputs),
    }
    (folder / _CONTENTS).write_text(json.dumps(contents), encoding="utf-8")


def _plan_json(plan: UnpackedPlan, folder: Path) -> dict[str, Any]:
    return {
        "models": [
            {
                "path": str(model.path.relative_to(folder)),
                "inputs": described(model.inputs),
                "outputs": described(model.outputs),
                "prepared": model.prepared,
            }
            for model in plan.models
        ],
        "targets": [str(target) for target in plan.targets],
        "lanes": plan.lanes,
    }


def _read(folder: Path) -> UnpackedShapes:
    contents = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))
    return UnpackedShapes(
        served=ServedShapes.from_text(contents["served"]),
        plans=tuple(_plan(plan, folder) for plan in contents["plans"]),
        hot=tuple(None if plan is None else _plan(plan, folder) for plan in contents["hot"]),
        inputs=specs(contents["inputs"]),
        outputs=specs(contents["outputs"]),
        constants=read_constants(contents["constants"], folder),
    )


def _plan(content: Mapping[str, Any], folder: Path) -> UnpackedPlan:
    models: Sequence[Mapping[str, Any]] = content["models"]
    return UnpackedPlan(
        tuple(
            SubModel(
                folder / m["path"], specs(m["inputs"]), specs(m["outputs"]), prepared=m["prepared"]
            )
            for m in models
        ),
        tuple(Target.parse(text) for text in content["targets"]),
        content["lanes"],
    )

"""Artifacts with free dimensions that are made without timing anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from collage.artifact.artifact import REPORT_KEY, crossing_values, make_verification
from collage.backends.numerics.reference import run_reference, table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.model.reference import RUNTIME
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.annotate import annotate
from collage.partitioner.emit.extract import with_outputs
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.binding import bind_sizes
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.shapes.classes import SHAPES_KEY, Proof, ServedShapes, ShapeClass, TreatedPlan, Treatment
from collage.shapes.padding import Padding
from collage.shapes.space import parse_dims

_SEEDS = (0, 1)


def split(model: Model, targets: Sequence[str]) -> Plan:
    """The nodes in as many runs of nearly equal length as there are targets."""
    count = len(model.index.nodes)
    cuts = [round(i * count / len(targets)) for i in range(len(targets) + 1)]
    return Plan(
        tuple(
            Candidate((1 << end) - (1 << begin), Target.parse(text), "split")
            for text, begin, end in zip(targets, cuts, cuts[1:], strict=False)
        )
    )


def shaped_artifact(
    source: onnx.ModelProto,
    folder: Path,
    dims: Mapping[str, int | str],
    classes: Sequence[tuple[int | None, Sequence[str]]],
    *,
    hot: Sequence[str] = (),
    hot_from: int = 3,
    data_dependent: Sequence[str] = (),
    most_copies: int = 8,
    padding: Padding | None = None,
) -> Path:
    """Write an artifact.

    Args:
        source: the model.
        folder: for all files; the source is `source.onnx` there.
        dims: as the option has them.
        classes: the largest extent and the targets of each class.
        hot: targets of the hot plan of every class; none for no hot plan.
        data_dependent: values whose shape depends on data.
        padding: how requests are padded for hot plans.
    """
    onnx.save(source, folder / "source.onnx")
    space = parse_dims(dims)
    assert not any(dim.is_fixed for dim in space.dims.values())
    info = normalize(folder / "source.onnx", folder / "free", {}, 0, RUNTIME, list(space.dims))
    free = Model.open(info.path)
    plans = [split(free, targets) for _, targets in classes]
    warm = split(free, hot) if hot else None
    served = ServedShapes(
        space=space,
        axes={
            value.name or "": tuple(d if isinstance(d, int) else d.value for d in value.shape or ())
            for value in (*free.ir.graph.inputs, *free.ir.graph.outputs)
        },
        data_dependent=tuple(data_dependent),
        classes=tuple(
            ShapeClass(
                up_to,
                _treated(free, plan, "dynamic"),
                None if warm is None else _treated(free, warm, "bucket" if padding else "exact"),
                hot_from,
                padding,
            )
            for (up_to, _), plan in zip(classes, plans, strict=True)
        ),
        proofs=(),
        most_copies=most_copies,
    )
    proofs = []
    for i, shape in enumerate(space.shapes):
        at = Model.open(bind_sizes(info.path, folder / f"shape-{i}", shape.sizes, RUNTIME).path)
        own = plans[served.class_of(shape.sizes)]
        proofs.append(
            Proof(
                dict(shape.sizes),
                _proof(at, own, folder / f"proof-{i}"),
                None if warm is None or padding else _proof(at, warm, folder / f"proof-hot-{i}"),
            )
        )
    served = ServedShapes(**{**vars(served), "proofs": tuple(proofs)})
    texts = {SHAPES_KEY: served.to_text(), REPORT_KEY: json.dumps({})}
    return annotate(free, plans[0], texts, folder / "artifact.onnx")


def _treated(free: Model, plan: Plan, treatment: Treatment) -> TreatedPlan:
    return TreatedPlan(encode_plan(free, plan), (treatment,) * len(plan.partitions))


def _proof(model: Model, plan: Plan, folder: Path) -> str:
    specs = [model.index.values[name] for name in model.index.inputs]
    samples = [seeded_inputs(specs, seed, table_bounds(model.index)) for seed in _SEEDS]
    names = crossing_values(model, plan)
    path = with_outputs(model, names, folder)
    reference = [run_reference(path, sample, names) for sample in samples]
    return make_verification(_SEEDS, samples, reference, {}, 1e-2).to_text()

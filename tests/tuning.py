"""Tuning a model that a test made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

import collage


def tuned(
    model: onnx.ModelProto, targets: Sequence[str], folder: Path, **options: Any
) -> collage.Artifact:
    """Tune a model from an empty database, all within a folder; the model is `m.onnx` there."""
    onnx.save(model, folder / "m.onnx")
    return collage.tune(
        folder / "m.onnx",
        targets,
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'c.db'}",
        **options,
    )

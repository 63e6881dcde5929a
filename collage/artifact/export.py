"""An artifact in the forms that other tools read: its plan, functions, ONNX Runtime's annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.emit.exports import layer_annotations, outline
from collage.partitioner.errors import BadInputError
from collage.partitioner.target import Target


def export(
    artifact: Path,
    plan: Path | None = None,
    outlined: Path | None = None,
    layers: Path | None = None,
    devices: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write an artifact in other forms.

    Args:
        plan: where the plan alone goes, as JSON that `tune --plan` takes.
        outlined: where the model with one function per partition goes.
        layers: where the model with ONNX Runtime's layer annotations goes.
        devices: ONNX Runtime's device by target text; `onnxruntime` targets need none.

    Returns:
        The paths written, by `plan`, `outline` and `layers`; under `settings` the session entries for
        `layers`.

    Raises:
        BadInputError: nothing was asked for, the file is no artifact, or a target has no device.
    """
    if plan is None and outlined is None and layers is None:
        raise BadInputError("nothing to export; give --plan, --outline or --layers with a file")
    stored = read_plan(artifact)
    written: dict[str, Any] = {}
    if plan is not None:
        plan.write_text(stored.text + "\n", encoding="utf-8")
        written["plan"] = str(plan)
    if outlined is not None:
        written["outline"] = str(outline(stored.model, stored.plan, outlined))
    if layers is not None:
        chosen = {Target.parse(text): device for text, device in (devices or {}).items()}
        annotated = layer_annotations(stored.model, stored.plan, layers, chosen)
        written |= {"layers": str(annotated.path), "settings": dict(annotated.settings)}
    return written


def parse_devices(texts: Sequence[str]) -> dict[str, str]:
    """Devices by target, from texts such as `openvino -precision=f32=npu`: the last `=` divides.

    Raises:
        BadInputError: a text is not of this form.
    """
    found = {}
    for text in texts:
        target, equals, device = text.rpartition("=")
        if not equals or not target or not device:
            raise BadInputError(f"--device {text!r} is not of the form target=device, as openvino=npu")
        found[target] = device
    return found


def read_plan_file(path: Path) -> dict[str, Any]:
    """A plan as JSON-ready data, from a plan file or an artifact.

    Raises:
        BadInputError: the file is neither.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"the plan {path} cannot be read: {error}") from None
    except ValueError:
        found = json.loads(read_plan(path).text)
    if not isinstance(found, dict):
        raise BadInputError(f"{path} holds no plan; write one with collage export ARTIFACT --plan FILE")
    return found

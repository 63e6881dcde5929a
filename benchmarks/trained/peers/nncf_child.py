"""NNCF's quantization with accuracy control on one model; runs in an environment of its own.

    python -m benchmarks.trained.peers.nncf_child FOLDER

The folder has `model.onnx`, `inputs.npz`, `settings.json` and perhaps `labels.npz`. It gets `model.xml`
and `result.json`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from collage.metrics.names import parse_metric


def main() -> None:
    """Quantize the model in the folder that the command line names."""
    # It would send data over the network.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import nncf
    import openvino as ov

    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    metric = parse_metric(settings["evaluate"])
    inputs = dict(np.load(folder / "inputs.npz"))
    labels = dict(np.load(folder / "labels.npz")) if (folder / "labels.npz").is_file() else {}
    samples = range(len(next(iter(inputs.values()))))

    def feed(i: int) -> dict[str, Any]:
        """The inputs of a sample."""
        return {name: array[i] for name, array in inputs.items()}

    model = ov.Core().read_model(folder / "model.onnx")
    reference: list[dict[str, Any]] = []

    def score(compiled: Any, chosen: Iterable[int]) -> float:
        """The metric on the samples with these numbers."""
        items = []
        for i in chosen:
            label = {name: array[i] for name, array in labels.items()} or None
            items.append(metric.item(_outputs(compiled, feed(i)), reference[i], label))
        return metric.score(items)

    begin = time.perf_counter()
    exact = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    reference += [_outputs(exact, feed(i)) for i in samples]
    dataset = nncf.Dataset(list(samples), feed)
    quantized = nncf.quantize_with_accuracy_control(
        model,
        dataset,
        dataset,
        score,
        max_drop=settings["max_drop"],
        drop_type=nncf.DropType.RELATIVE,
    )
    seconds = time.perf_counter() - begin
    ov.save_model(quantized, folder / "model.xml", compress_to_fp16=False)
    (folder / "result.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")


def _outputs(compiled: Any, feed: dict[str, Any]) -> dict[str, Any]:
    made = compiled(feed)
    return {
        name: np.array(made[port]) for port in compiled.outputs for name in sorted(port.get_names())[:1]
    }


if __name__ == "__main__":
    main()

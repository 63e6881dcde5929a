"""An artifact, the best fp32 target and a peer's model, timed in turn; runs in a process of its own.

    python -m benchmarks.trained.peers.timed ARTIFACT PLAIN MODEL INPUTS ROUNDS

Prints the samples in µs by name as JSON: `ours`, `fp32` and `peer`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import collage
from benchmarks.support.interleave import interleave
from collage.backends.machine.process_policy import default_threads


class PeerModel:
    """A model on OpenVINO's own settings, for one request at a time."""

    def __init__(self, path: Path) -> None:
        import openvino as ov

        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": default_threads()}
        self._compiled: Any = ov.Core().compile_model(str(path), "CPU", settings)
        self._request: Any = self._compiled.create_infer_request()

    def bind(self, feed: Mapping[str, np.ndarray]) -> None:
        """Give the inputs of the next runs."""
        import openvino as ov

        for name, array in feed.items():
            self._request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))

    def run(self) -> None:
        """Compute once."""
        self._request.infer()

    def outputs(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name."""
        self.bind(feed)
        self.run()
        found = {}
        for number, port in enumerate(self._compiled.outputs):
            array = np.array(self._request.get_output_tensor(number).data)
            found |= dict.fromkeys(port.get_names(), array)
        return found


def main() -> None:
    """Time what the command line names."""
    artifact, plain, model, inputs = (Path(text) for text in sys.argv[1:5])
    with np.load(inputs) as stored:
        feed = {name: stored[name][0] for name in stored.files}
    peer = PeerModel(model)
    peer.bind(feed)
    with (
        collage.load(artifact, cache_dir=False) as ours,
        collage.load(plain, cache_dir=False) as fp32,
    ):
        runners = {
            "ours": lambda: ours.run(None, feed),
            "fp32": lambda: fp32.run(None, feed),
            "peer": peer.run,
        }
        print(json.dumps(interleave(runners, int(sys.argv[5]))))


if __name__ == "__main__":
    main()

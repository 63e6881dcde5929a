"""One model in a process of its own: tuned, refused or failed; and what plain ONNX Runtime does with it.

    python -m benchmarks.breadth.one REQUEST.json

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import collage
from benchmarks.breadth.plain import run_plainly
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import CollageError

# What a message says where the fault is ours, whoever caught it.
_OURS = ("our own code", "please report")


def main() -> None:
    """Read the request and print the outcome."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    path, inputs = Path(request["path"]), request["inputs"]
    try:
        plain = run_in_child(
            run_plainly,
            path,
            request["dims"],
            Path(inputs) if inputs else None,
            limits=ChildLimits(timeout_s=120),
        )
    except ChildFailed as failure:
        plain = f"refuses: {failure.reason.replace(str(path), path.name)}"[:300]
    print(json.dumps({"onnxruntime": plain, **tuned(request)}))


def tuned(request: dict[str, Any]) -> dict[str, Any]:
    """What tuning came to, and its seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="collage-breadth-") as folder:
        try:
            artifact = collage.tune(
                request["path"],
                request["targets"],
                output=Path(folder) / "a.onnx",
                database=f"sqlite:///{folder}/costs.db",
                dims=request["dims"],
                inputs=request["inputs"],
                time_limit_s=request["time_limit_s"],
            )
        except CollageError as error:
            said = " ".join(str(error).split())
            outcome = "failed" if any(word in said for word in _OURS) else "refused"
            return {"outcome": outcome, "reason": said[:500], "seconds": time.monotonic() - begin}
        except Exception as error:  # a fault of ours is what this benchmark looks for
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return {"outcome": "failed", "reason": said[:500], "seconds": time.monotonic() - begin}
        seconds = time.monotonic() - begin
    report = artifact.report
    return {
        "outcome": "tuned",
        "reason": "",
        "seconds": seconds,
        "partitions": [[part["target"], len(part["nodes"])] for part in report["partitions"]],
        "latency_us": report["latency_us"],
        "speedup": report["speedup_over_best_single"],
        "warnings": list(report["warnings"]),
    }


if __name__ == "__main__":
    main()

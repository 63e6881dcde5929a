"""ONNX Runtime's profile: from its trace and its optimized graph to named steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.backends.support.ort_session import GRAPH, WEIGHTS, save_optimized
from collage.backends.support.profile_mapping import ProfileStep, typical_us
from collage.partitioner.lazy import ir

_KERNEL = "_kernel_time"
_BLOCKED = "_nchwc"  # appended to the name of an output when its node moves to the blocked layout


def prepare(options: Any, folder: Path) -> None:
    """Make a session write its trace and its optimized graph into a folder."""
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    save_optimized(options, folder)


def collect(session: Any, folder: Path) -> list[ProfileStep]:
    """End the session's profile, read it as steps with typical times, and remove its files."""
    trace = Path(session.end_profiling())
    events = json.loads(trace.read_text(encoding="utf-8"))
    optimized = ir.load(folder / GRAPH)
    outputs = {
        node.name or "": tuple(v.name for v in node.outputs if v.name) for node in optimized.graph
    }
    steps = _steps(events, outputs)
    for path in (trace, folder / GRAPH, folder / WEIGHTS):
        path.unlink(missing_ok=True)
    return steps


def _steps(events: list[dict[str, Any]], outputs: Mapping[str, tuple[str, ...]]) -> list[ProfileStep]:
    """Typical kernel times by node of the optimized graph, the first (warming) run left out."""
    seen: dict[str, tuple[str, list[float]]] = {}
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith(_KERNEL):
            kind = event["args"].get("op_name", "unknown")
            seen.setdefault(name.removesuffix(_KERNEL), (kind, []))[1].append(float(event["dur"]))
    steps = []
    for name, (kind, times) in seen.items():
        counted = times[1:] or times
        # The output's name comes first: the node's own may be that of a fused node.
        names = (*outputs.get(name, ()), name.removesuffix(_BLOCKED), name)
        steps.append(ProfileStep(names, kind, typical_us(counted)))
    return steps

"""How a script without this project opens a model as the target does."""

from __future__ import annotations

from collage.backends.support.ort_session import PROVIDERS
from collage.partitioner.target import Target

_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
# Options that change the model or need more than a session's options.
_NOT_SAID = ("rewrite", "quant", "float", "graphs", "tf32")

_LINES = """def open_model(path):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = {threads}
    options.graph_optimization_level = ort.GraphOptimizationLevel.{level}
    options.enable_cpu_mem_arena = {pool}
    options.add_session_config_entry("session.disable_prepacking", "{unpacked}")
    session = ort.InferenceSession(str(path), options, providers=["{provider}"])
    return lambda inputs: session.run(None, inputs)
"""


def opening_lines(target: Target, threads: int) -> str | None:
    """Text that defines `open_model`; None for targets that need this project."""
    if any(name in _NOT_SAID and value not in ("off", "none") for name, value in target.options):
        return None
    given = target.option("threads", "auto")
    return _LINES.format(
        threads=threads if given == "auto" else given,
        pool=target.option("pool", "on") == "on",
        unpacked=int(target.option("prepack", "on") == "off"),
        level=_LEVELS[target.option("opt", "all")],
        provider=PROVIDERS[target.option("ep", "cpu")],
    )

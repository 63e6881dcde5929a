"""Opens ONNX Runtime's sessions, and keeps their optimized graphs in the cache.

A session on a kept graph optimizes nothing and maps its weights instead of copying them
(docs/results/load-time.md). Results are the same to the bit. The graph suits the processor that it was
made on, so it stays in this machine's cache.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from collage.backends.contract import CompileContext, threads_of
from collage.backends.machine import process_policy
from collage.backends.sandbox.native_output import quiet
from collage.backends.support.conversion import cached
from collage.backends.support.cuda_options import GRAPHS, TF32, is_on
from collage.backends.support.file_digests import files_of
from collage.partitioner.errors import CollageError
from collage.partitioner.target import Target

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "dnnl": "DnnlExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "rocm": "MIGraphXExecutionProvider",
    "dml": "DmlExecutionProvider",
}
ON_CUDA = ("cuda", "tensorrt")
_NO_FALLBACK = "fallback to CPU EP has been explicitly disabled"
GRAPH = "optimized.onnx"
WEIGHTS = f"{GRAPH}.weights"  # where `files_of` looks
_LEVELS: Mapping[str, str] = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
# Smaller weights stay in the graph's file: in a kept graph, since mapping one takes longer than copying it.
_OUTSIDE_BYTES, _MAPPED_BYTES = 1024, 16384


@lru_cache(maxsize=1)
def ort() -> Any:
    """The module, imported under the policy's environment."""
    process_policy.apply_environment()
    import onnxruntime

    return onnxruntime


def options_of(target: Target, context: CompileContext, level: str | None = None) -> Any:
    """Session options for a target; `level` of optimization in place of the target's own."""
    settings = session_settings(target, context, level)
    options = ort().SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = settings["threads"]
    options.inter_op_num_threads = 1
    options.execution_mode = ort().ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort().GraphOptimizationLevel, settings["level"])
    options.enable_cpu_mem_arena = settings["pool"]
    for name, value in settings["entries"].items():
        options.add_session_config_entry(name, value)
    return options


def session_settings(
    target: Target, context: CompileContext, level: str | None = None
) -> dict[str, Any]:
    """`threads`, `level` of optimization, memory `pool` and session `entries` of a target, as plain values."""
    spinning = target.option("spinning", "run")
    entries = {
        "session.intra_op.allow_spinning": str(int(spinning != "off")),
        "session.force_spinning_stop": str(int(spinning == "run")),
    }
    if target.option("ep", "cpu") != "cpu":
        entries["session.disable_cpu_ep_fallback"] = "1"
    if _is_exact(target):
        entries["session.x64quantprecision"] = "1"
    if target.option("prepack", "on") == "off":
        entries["session.disable_prepacking"] = "1"
    threads = threads_of(target, context)
    return {
        # Callers of one session share its workers, and each computes too.
        "threads": context.instances * (threads - 1) + 1,
        "level": _LEVELS[level or target.option("opt", "all")],
        "pool": target.option("pool", "on") == "on",
        "entries": entries,
    }


def _is_exact(target: Target) -> bool:
    return target.option("u8s8", "fast") == "exact"


def save_optimized(options: Any, folder: Path, outside_bytes: int = _OUTSIDE_BYTES) -> None:
    """Make a session with these options write `GRAPH`, and weights of so many bytes as `WEIGHTS`, into a folder."""
    options.optimized_model_filepath = str(folder / GRAPH)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", WEIGHTS)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(outside_bytes))


def open_model(model: Path, target: Target, options: Any) -> Any:
    """A session for an ONNX file; raises what ONNX Runtime raises, or why its provider cannot take it."""
    ep = target.option("ep", "cpu")
    if ep in ON_CUDA:
        preload_cuda()
    # By default a session that fails opens on the CPU instead.
    try:
        return ort().InferenceSession(
            str(model), options, providers=_providers(target), enable_fallback=False
        )
    except Exception as error:
        if _NO_FALLBACK not in str(error):
            raise
        raise CollageError(
            f"{PROVIDERS[ep]} leaves nodes to the CPU, or a library that it needs is missing"
        ) from error


def open_session(
    model: Path, target: Target, context: CompileContext
) -> tuple[Any, tuple[Path, ...] | None]:
    """A session for an ONNX file, and the files in the cache that it was opened from, if any.

    Raises:
        Exception: what ONNX Runtime raises.
    """
    if context.cache_dir is not None and target.option("ep", "cpu") == "cpu":
        # Some graphs can be run but not written or read again; other errors come again below.
        with contextlib.suppress(Exception):
            kept = _optimized(model, target, context, context.cache_dir)
            session = open_model(kept, target, options_of(target, context, "none"))
            return session, tuple(files_of(kept))
    return open_model(model, target, options_of(target, context)), None


def _optimized(model: Path, target: Target, context: CompileContext, cache_dir: Path) -> Path:
    def make(folder: Path) -> None:
        options = options_of(target, context)
        save_optimized(options, folder, _MAPPED_BYTES)
        open_model(model, target, options)
        (folder / WEIGHTS).touch()  # not written where no weight is large enough

    maker = f"onnxruntime-{ort().__version__}-{target.option('opt', 'all')}"
    maker += "-u8s8" if _is_exact(target) else ""
    folder = cached(files_of(model), [GRAPH, WEIGHTS], maker, make, context.work_dir, cache_dir)
    return folder / GRAPH


@lru_cache(maxsize=1)
def preload_cuda() -> str:
    """Load the CUDA libraries that are installed as Python packages; returns what is missing, or nothing."""
    said = io.StringIO()
    with quiet(), contextlib.redirect_stdout(said):
        ort().preload_dlls()  # which prints
    return said.getvalue().partition("\n")[0]


def _providers(target: Target) -> list[Any]:
    ep = target.option("ep", "cpu")
    chosen = PROVIDERS[ep]
    if ep not in ON_CUDA:
        return [chosen]
    options = {"device_id": target.option("device", "0")}
    if ep == "cuda":
        # By default it computes products and convolutions of float32 in TF32.
        options["use_tf32"] = str(int(is_on(target, TF32)))
        options["enable_cuda_graph"] = str(int(is_on(target, GRAPHS)))
    return [(chosen, options)]

"""The side of `benchmarks.other_runtimes` that runs in another Python environment.

It imports numpy and one runtime only, so that any environment works. It reads `model.onnx`, `feeds.npz`
and `expected.npz` from a folder, compiles the model and compares its outputs. Then it times a block of
calls for every line that it reads. Each answer is one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Feeds = Mapping[str, np.ndarray]
Call = Callable[[], list[np.ndarray]]


def torch_compile(folder: Path, feeds: Feeds, threads: int) -> Call:
    """onnx2fx, then torch.compile with inductor."""
    import onnx
    import onnx2fx
    import torch

    torch.set_num_threads(threads)
    module = torch.compile(onnx2fx.convert(onnx.load(folder / "model.onnx")).eval())
    given = [torch.from_numpy(value) for value in feeds.values()]

    def call() -> list[np.ndarray]:
        with torch.inference_mode():
            made = module(*given)
        return [value.numpy() for value in (made if isinstance(made, (tuple, list)) else [made])]

    return call


def tvm(folder: Path, feeds: Feeds, threads: int) -> Call:
    """Relax's ONNX front end and its default pipeline, without tuning."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    os.environ["TVM_NUM_THREADS"] = str(threads)
    shapes = {name: list(value.shape) for name, value in feeds.items()}
    dtypes = {name: value.dtype.name for name, value in feeds.items()}
    module = from_onnx(onnx.load(folder / "model.onnx"), shapes, dtypes)
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    with tvm.transform.PassContext(opt_level=3):
        built = tvm.compile(module, target=target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    given = [tvm.runtime.tensor(value) for value in feeds.values()]

    def call() -> list[np.ndarray]:
        made = machine["main"](*given)
        return [made.numpy()] if hasattr(made, "numpy") else [value.numpy() for value in made]

    return call


def iree(folder: Path, feeds: Feeds, threads: int) -> Call:
    """iree-import-onnx and the CPU compiler for this very processor."""
    import subprocess

    os.environ["IREE_PY_RUNTIME_FLAGS"] = f"--task_topology_max_group_count={threads}"
    import iree.runtime
    from iree.compiler import tools

    program = folder / "model.mlir"
    importer = Path(sys.executable).with_name("iree-import-onnx")
    upgraded = ["--opset-version", "17"]
    subprocess.run([importer, folder / "model.onnx", "-o", program, *upgraded], check=True)
    built = tools.compile_file(
        str(program),
        input_type="onnx",
        target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"],
    )
    config = iree.runtime.Config("local-task")
    module = iree.runtime.load_vm_module(
        iree.runtime.VmModule.copy_buffer(config.vm_instance, built), config
    )
    name = next(n for n in module.vm_module.function_names if not n.startswith("__") and "$" not in n)
    given = [iree.runtime.asdevicearray(config.device, value) for value in feeds.values()]

    def call() -> list[np.ndarray]:
        made = module[name](*given)
        return [value.to_host() for value in (made if isinstance(made, (tuple, list)) else [made])]

    return call


def litert(folder: Path, feeds: Feeds, threads: int) -> Call:
    """onnx2tf, then LiteRT with XNNPACK; inputs and outputs are transposed to (N, H, W, C)."""
    import onnx2tf
    from ai_edge_litert.interpreter import Interpreter

    onnx2tf.convert(
        input_onnx_file_path=str(folder / "model.onnx"),
        output_folder_path=str(folder / "tf"),
        non_verbose=True,
    )
    path = next((folder / "tf").glob("*_float32.tflite"))
    interpreter = Interpreter(str(path), num_threads=threads)
    interpreter.allocate_tensors()
    details = interpreter.get_input_details()
    for detail, value in zip(details, feeds.values(), strict=True):
        if list(detail["shape"]) != list(value.shape):
            value = np.ascontiguousarray(np.moveaxis(value, 1, -1))
        interpreter.set_tensor(detail["index"], value)

    def call() -> list[np.ndarray]:
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

    return call


RUNTIMES: dict[str, Callable[[Path, Feeds, int], Call]] = {
    "torch": torch_compile,
    "tvm": tvm,
    "iree": iree,
    "litert": litert,
}


def main(runtime: str, folder: Path, threads: int) -> None:
    """Compile and compare, then time a block for every line read."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # compilers print what they like
    feeds = dict(np.load(folder / "feeds.npz"))
    expected = dict(np.load(folder / "expected.npz"))
    try:
        begin = time.perf_counter()
        call = RUNTIMES[runtime](folder, feeds, threads)
        made = call()
        compile_s = time.perf_counter() - begin
        pairs = zip(made, expected.values(), strict=True)
        error = max(float(np.abs(a.ravel() - b.ravel()).max() / np.abs(b).max()) for a, b in pairs)
    except Exception as failure:
        text = (str(failure).strip().splitlines() or [""])[-1][:200]
        answers.write(json.dumps({"failure": f"{type(failure).__name__}: {text}"}) + "\n")
        return
    answers.write(json.dumps({"error": error, "compile_s": compile_s}) + "\n")
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        # The first call finds the caches and cores as another process left them.
        answers.write(json.dumps({"ms": statistics.median(times[1:] or times) * 1e3}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

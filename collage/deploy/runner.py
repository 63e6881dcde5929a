#!/usr/bin/env python3
"""Runs a package that `collage package` wrote: needs numpy and the runtimes of requirements.txt, nothing else.

    from runner import Session
    with Session("folder") as session:
        outputs = session.run(None, {"x": array})

`python runner.py` in the folder checks it: files, versions, and the outputs of the self-test.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import re
import sys
import threading
from contextlib import AbstractContextManager, suppress
from importlib import metadata
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np

NAMESPACE, HERE, SIDES = "collage", Path(__file__).parent, ("inputs", "outputs")
MANIFEST, SUMS, SELF_TEST, PLAIN = "manifest.json", "SHA256SUMS", "self-test.npz", "plain"
# Native libraries read these when they are loaded: workers do not spin while another runtime computes.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
ENVIRONMENT["ORT_DISABLE_TELEMETRY"] = "1"


class PackageError(Exception):
    """The package cannot be used here; the message says what to do."""


class NodeArg:
    """An input or output as ONNX Runtime describes it: `name`, `shape`, `type` as `tensor(float)`."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.name, self.dtype = str(described["name"]), str(described["dtype"])
        self.shape: list[int | str | None] = described["shape"]
        self.type = f"tensor({ {'float32': 'float', 'float64': 'double'}.get(self.dtype, self.dtype) })"


# A partition on each runtime: opened from a variant's folder, and bound to arrays as the call that computes it.
class OnnxRuntimePart:
    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        import onnxruntime as ort

        settings = part["settings"]
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads, options.inter_op_num_threads = settings["threads"], 1
        options.enable_cpu_mem_arena = settings.get("pool", True)
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings["level"])
        for name, value in settings["entries"].items():
            options.add_session_config_entry(name, value)
        model = str(folder / part["files"]["model"])
        self.session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        self._specs, self._value = (part["inputs"], part["outputs"]), ort.OrtValue.ortvalue_from_numpy

    def bind(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> Any:
        binding = self.session.io_binding()
        # The values do not own their arrays, and lie on the same memory.
        for spec, array in zip(self._specs[0], inputs, strict=True):
            binding.bind_ortvalue_input(spec["name"], self._value(array))
        for spec, array in zip(self._specs[1], outputs, strict=True):
            binding.bind_ortvalue_output(spec["name"], self._value(array))
        return functools.partial(self.session.run_with_iobinding, binding)


class OpenVinoPart:
    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        # Its telemetry would fork this process.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        import openvino

        self._ov, settings = openvino, part["settings"]
        core = openvino.Core()
        core.set_property({"ENABLE_MMAP": True})
        model = str(folder / part["files"]["model"])
        self.request = core.compile_model(model, "CPU", settings["properties"]).create_infer_request()
        self.ports = settings["ports"]
        self.passed = {int(output): given for output, given in settings["passed"].items()}

    def bind(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> Any:
        for port, array in zip(self.ports, inputs, strict=True):
            if port is not None:
                self.request.set_input_tensor(port, self.tensor(array))
        for i, array in enumerate(outputs):
            self.request.set_output_tensor(i, self.tensor(array))
        # OpenVINO writes no output that is a bare input.
        pairs = [(outputs[i], inputs[n].reshape(outputs[i].shape)) for i, n in self.passed.items()]
        calls = [self.request.infer, *(functools.partial(np.copyto, *pair) for pair in pairs)]
        return (lambda: [call() for call in calls]) if pairs else calls[0]

    def tensor(self, array: np.ndarray) -> Any:
        # OpenVINO knows int64 as long, not as long long.
        return self._ov.Tensor(array.view(np.dtype(array.dtype.name)), shared_memory=True)


class MnnPart:
    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        from MNN import expr, nn

        self.expr, settings = expr, part["settings"]
        # MNN starts its threads once in a process, so the most that are needed are started first.
        for count in settings["threads"]:
            config = {"backend": "CPU", "numThread": count, "precision": settings["precision"]}
            self._runtime = nn.create_runtime_manager((config | settings.get("modes", {}),))
        _ = [self._runtime.set_hint(*hint) for hint in settings["hints"]]
        how: dict[str, Any] = {"runtime_manager": self._runtime, "shape_mutable": "any_size" in part}
        how["precision_mode"] = getattr(expr.PrecisionMode, settings["precision"].capitalize())
        names = [[spec["name"] for spec in part[side]] for side in SIDES]
        self.module = nn.load_module_from_file(str(folder / part["files"]["model"]), *names, **how)
        self.variables = [
            self.expr.placeholder(spec["shape"], self.expr.NCHW, getattr(self.expr, kind))
            for spec, kind in zip(part["inputs"], settings["at_border"], strict=True)
        ]

    def bind(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> Any:
        def run() -> None:
            for variable, array in zip(self.variables, inputs, strict=True):
                variable.write(array)
            for variable, place in zip(self.module.forward(self.variables), outputs, strict=True):
                if variable.data_format == self.expr.NC4HW4:
                    variable = self.expr.convert(variable, self.expr.NCHW)
                np.copyto(place, variable.read().reshape(place.shape), casting="unsafe")

        return run


class NcnnPart:
    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        import ncnn

        self._net = ncnn.Net()
        for name, value in part["settings"]["options"].items():
            setattr(self._net.opt, name, value)
        files = [str(folder / part["files"][role]) for role in ("parameters", "weights")]
        if self._net.load_param(files[0]) or self._net.load_model(files[1]):
            raise PackageError("ncnn could not load its model; write the package again")
        # ncnn's matrices have no batch dimension.
        batched = zip(part["inputs"], part["settings"]["batched"], strict=True)
        self._shapes = [tuple(spec["shape"][int(has_batch) :]) for spec, has_batch in batched]
        self._matrices = [ncnn.Mat(np.zeros(s, np.float32)).clone() for s in self._shapes]
        self._views = [np.array(matrix, copy=False) for matrix in self._matrices]

    def bind(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> Any:
        shaped = [array.reshape(shape) for array, shape in zip(inputs, self._shapes, strict=True)]

        def run() -> None:
            for view, array in zip(self._views, shaped, strict=True):
                np.copyto(view, array)
            extractor = self._net.create_extractor()
            for i, matrix in enumerate(self._matrices):
                extractor.input(f"in{i}", matrix)
            for i, place in enumerate(outputs):
                failed, matrix = extractor.extract(f"out{i}")
                if failed:
                    raise PackageError(f"ncnn could not compute output {i} of a partition")
                # A matrix that outlives its extractor crashes, so it is copied here.
                np.copyto(place, np.array(matrix, copy=False).reshape(place.shape))

        return run


PARTS: dict[str, Any] = {"onnxruntime": OnnxRuntimePart, "openvino": OpenVinoPart}
PARTS |= {"mnn": MnnPart, "ncnn": NcnnPart}


class Session(AbstractContextManager["Session"]):
    """A package that is ready to run, with the calls that ONNX Runtime has.

    Attributes:
        variant, why: which variant of the package runs, one for this kind of machine or `plain`, and why.
        variants: what the manifest says of each.
        threads: threads of one call.
    """

    def __init__(
        self, folder: str | Path = HERE, *, variant: str | None = None, check: bool = True
    ) -> None:
        """Open a package; raises PackageError where it cannot run here or was changed.

        Args:
            variant: which one to run; None for the one that suits this machine, else `plain`.
            check: compare the files with their SHA-256, and the outputs with those of the self-test.
        """
        os.environ.update(ENVIRONMENT | os.environ)
        self._lock, self._root = threading.Lock(), Path(folder)
        try:
            manifest = json.loads((self._root / MANIFEST).read_text(encoding="utf-8"))
            (self.variants,) = [component["variants"] for component in manifest["components"].values()]
            described = manifest["additional_metadata"][NAMESPACE]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PackageError(f"{folder} holds no package ({error}); copy the package again") from None
        if check:
            check_files(self._root, described)
        self._inputs, self._outputs = ([NodeArg(spec) for spec in described[s]] for s in SIDES)
        self._known = [spec.name for spec in self._outputs]
        self._meta = SimpleNamespace(custom_metadata_map=described.get("metadata", {}))
        self._given = {e.name: (np.dtype(e.dtype), tuple(e.shape)) for e in self._inputs}
        self._tolerance = float(described["tolerance"])
        if variant is not None and variant not in self.variants:
            raise PackageError(f"there is no variant {variant!r}; there are {sorted(self.variants)}")
        fits, problems = {name: _fit(each) for name, each in self.variants.items()}, list[str]()
        order = sorted(fits, key=lambda name: (name == PLAIN, *fits[name][2]))
        for name in order if variant is None else [variant]:
            problem, unlike, _ = fits[name]
            if problem := problem or self._opened(name, check, unlike.get("versions")):
                problems.append(f"{name}: {problem}")
                continue
            self.why = "; ".join([*problems, *unlike.values()]) or "it suits this machine"
            return
        raise PackageError("no variant can run here: " + "; ".join(problems))

    def _opened(self, name: str, check: bool, others: str | None) -> str:
        """Open a variant; why it cannot run with other versions than its own, empty where it is open."""
        self.variant, plan = name, self.variants[name]["executor_info"][NAMESPACE]
        self.threads: int = plan.get("threads", 1)
        place = self._root / self.variants[name].get("variant_directory", name)
        with np.load(place / plan["constants"]) as kept:
            self._constants = dict(zip(plan["constant_names"], map(kept.get, kept.files), strict=True))
        try:
            self._bind(place, plan["partitions"])
            if check or others:  # what was made by other versions must prove itself
                self.self_test()
        except Exception as error:
            if not others:
                told = "" if isinstance(error, PackageError) else f"variant {name!r} cannot be opened: "
                raise PackageError(f"{told}{error}") from error
            return f"{others.partition(';')[0]}, and so it fails: {error}"
        return ""

    def _bind(self, place: Path, partitions: list[dict[str, Any]]) -> None:
        """Open the partitions, each bound to the arrays of the values that it reads and makes."""
        self._is_fixed = not partitions or partitions[0]["runtime"] != "by_size"
        if not self._is_fixed:
            by_size = run_path(str(Path(__file__).with_name("by_size.py")))
            self._call: Any = by_size["Parts"](place, partitions[0], PARTS, self._constants).run
            return
        values = {**self._constants, **{spec.name: _array(vars(spec)) for spec in self._inputs}}
        fed, runs = [(spec.name, values[spec.name]) for spec in self._inputs], []
        for part in partitions:
            values |= {spec["name"]: _array(spec) for spec in part["outputs"]}
            read, made = ([values[spec["name"]] for spec in part[side]] for side in SIDES)
            runs.append(PARTS[part["runtime"]](place, part).bind(read, made))

        def call(names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            for name, place in fed:
                np.copyto(place, feed[name])
            for run in runs:
                run()
            return [values[name].copy() for name in names]

        self._call = call

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return list(self._outputs)

    def get_modelmeta(self) -> SimpleNamespace:
        """The metadata that the model came with: `custom_metadata_map`."""
        return self._meta

    def run(self, output_names: list[str] | None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Compute outputs from inputs; raises ValueError for wrong ones. Calls from several threads take turns."""
        names = self._known if output_names is None else list(output_names)
        if output_names is not None and (unknown := sorted(set(names) - set(self._known))):
            raise ValueError(f"unknown outputs {unknown}; the model has {self._known}")
        if feed.keys() != self._given.keys():
            missing, others = sorted(self._given.keys() - feed), sorted(feed.keys() - self._given)
            raise ValueError(f"inputs missing: {missing or 'none'}, unknown: {others or 'none'}")
        for name, (kind, shape) in self._given.items():
            array = np.asarray(feed[name])
            if array.dtype != kind or (self._is_fixed and array.shape != shape):
                wanted, got = f"{kind} of shape {[*shape]}", f"{array.dtype} of shape {[*array.shape]}"
                raise ValueError(f"input {name!r} must be an array of {wanted}, not {got}")
        with self._lock:
            if self._call is None:
                raise PackageError("the session is closed; open the package again")
            return list(self._call(names, feed))

    def self_test(self) -> float:
        """Run the samples of the self-test; the largest error, relative to an output's largest magnitude."""
        worst = 0.0
        with np.load(self._root / SELF_TEST) as kept:
            arrays = [kept[f"arr_{i}"] for i in range(len(kept.files))]
            count = len(self._inputs)
            for i in range(0, len(arrays), count + len(self._outputs)):
                feed = {spec.name: arrays[i + n] for n, spec in enumerate(self._inputs)}
                for n, made in enumerate(self.run(None, feed)):
                    if not (error := _error(made, arrays[i + count + n])) <= self._tolerance:
                        raise PackageError(
                            f"output {self._known[n]!r} differs from the self-test by {error:.3g} of "
                            f'{self._tolerance:.3g} allowed: run the variant "plain", or tune on this machine'
                        )
                    worst = max(worst, error)
        return worst

    def close(self) -> None:
        """Give back memory; may be called twice."""
        with self._lock:
            self._call = None

    def __exit__(self, *_: object) -> None:
        self.close()


def _fit(variant: dict[str, Any]) -> tuple[str, dict[str, str], tuple[Any, ...]]:
    """Why a variant cannot run here, what is not as it was where it was tuned, and a rank: the best sort first."""
    plan = variant["executor_info"][NAMESPACE]
    machine, others = plan["machine"], []
    if machine.get("architecture", platform.machine()) != platform.machine():
        return f"it is for {machine['architecture']}, and this is {platform.machine()}", {}, ()
    if lacking := sorted(set(machine.get("features", ())) - cpu()[1]):
        return f"this processor lacks {', '.join(lacking)}", {}, ()
    for name, version in plan["requirements"].items():
        # What a build for GPUs runs on the processor is the same.
        found = [d.version for n in (name, f"{name}-gpu") for d in metadata.distributions(name=n)]
        if not found:
            return f"{name} is not installed: pip install -r requirements.txt", {}, ()
        others += [f"{name} is {found[0]}, not {version}"] if version not in found else []
    anew = ", ".join(others) + "; it was built anew, and its outputs are right"
    unlike = {"versions": anew} if others else {}
    if (threads := plan.get("threads", 1)) > cores():
        unlike["threads"] = f"its {threads} threads share {cores()} cores"
    if machine.get("cpu", cpu()[0]) != cpu()[0]:
        unlike["cpu"] = f"it was tuned on {machine['description']}"
    differs = [what in unlike for what in ("versions", "threads", "cpu")]
    rank = *differs, abs(machine.get("threads", 0) - cores()), -len(machine.get("features", ()))
    return "", unlike, rank


def cpu() -> tuple[str, set[str]]:
    """This processor's model and flags as Linux names them; empty where the system does not tell."""
    text = file.read_text(encoding="utf-8") if (file := Path("/proc/cpuinfo")).is_file() else ""
    fields = dict(re.findall(r"^(.*?)[ \t]*: (.*)$", text, re.MULTILINE))
    known = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part")
    flags = fields.get("flags") or fields.get("Features", "")
    return ", ".join(fields[name] for name in known if name in fields), set(flags.split())


def cores() -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    given = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # where there is no limit
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        given = max(1, min(given, int(limit) // int(period)))
    return given


def _array(spec: dict[str, Any]) -> np.ndarray:
    """An array at the start of a cache line, as runtimes ask of memory that they use in place."""
    kind, count = np.dtype(spec["dtype"]), math.prod(spec["shape"])
    memory = np.zeros(kind.itemsize * count + 64, np.uint8)
    return np.frombuffer(memory, kind, count, -memory.ctypes.data % 64).reshape(spec["shape"])


def check_files(root: Path, described: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of each file; raises PackageError where one is missing, was changed, or has none."""
    text = file.read_text(encoding="utf-8", errors="replace") if (file := root / SUMS).is_file() else ""
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    for name in {MANIFEST: "", **dict.fromkeys(described.get("files", ())), **sums}:
        if not (file := root / name).is_file():
            raise PackageError(f"{name} is missing; copy the package again")
        if hashlib.sha256(file.read_bytes()).hexdigest() != sums.get(name):
            what = "was changed" if name in sums else "is not in " + SUMS
            raise PackageError(f"{name} {what}; copy the package again")
    return sums


def _error(made: np.ndarray, wanted: np.ndarray) -> float:
    if made.shape != wanted.shape or not wanted.size or wanted.dtype.kind not in "fiuc":
        return 0.0 if np.array_equal(made, wanted) else float("inf")
    a, b = (np.stack([each.real, each.imag]).astype(float) for each in (made, wanted))
    finite = np.isfinite(b)  # elsewhere rounding decides, and where it is NaN, anything is right
    beyond = np.isinf(a) & (finite | (a == -b)) | np.isnan(a) & ~np.isnan(b)
    apart = float("inf") if beyond.any() else np.abs(a[finite] - b[finite]).max(initial=0.0)
    return float(apart / np.abs(b[finite]).max(initial=1e-30))


if __name__ == "__main__":
    try:
        with Session() as opened:
            print(f"variant {opened.variant} ({opened.why}): all files as written, outputs right")
    except PackageError as error:
        sys.exit(f"runner: {error}")

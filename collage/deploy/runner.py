#!/usr/bin/env python3
"""Runs a package that `collage package` wrote: needs numpy and the runtimes of requirements.txt, nothing else.

    from runner import Session
    with Session("folder") as session:
        outputs = session.run(None, {"x": array})

`python runner.py` in the folder checks it: files, versions, and the outputs of the self-test.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import threading
from importlib import metadata
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np

NAMESPACE = "collage"
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
SELF_TEST = "self-test.npz"
PLAIN = "plain"
# Native libraries read these when they are loaded: workers do not spin while another runtime computes.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
    "ORT_DISABLE_TELEMETRY": "1",
}


def _names(specs: list[dict[str, Any]]) -> list[str]:
    return [spec["name"] for spec in specs]


class PackageError(Exception):
    """The package cannot be used here; the message says what to do."""


class NodeArg:
    """An input or output as ONNX Runtime describes it: `name`, `shape`, `type` as `tensor(float)`."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.name: str = described["name"]
        self.dtype: str = described["dtype"]
        self.shape: list[int] = described["shape"]
        self.type = f"tensor({ {'float32': 'float', 'float64': 'double'}.get(self.dtype, self.dtype) })"


class OnnxRuntimePart:
    """A partition on ONNX Runtime."""

    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        import onnxruntime as ort

        settings = part["settings"]
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = settings["threads"]
        options.inter_op_num_threads = 1
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings["level"])
        for name, value in settings["entries"].items():
            options.add_session_config_entry(name, value)
        model = str(folder / part["files"]["model"])
        self._session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        self._inputs, self._outputs = _names(part["inputs"]), _names(part["outputs"])

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        feed = dict(zip(self._inputs, arrays, strict=True))
        made: list[np.ndarray] = self._session.run(self._outputs, feed)
        return made


class OpenVinoPart:
    """A partition on OpenVINO."""

    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        # Its telemetry would fork this process.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        import openvino

        self._ov, settings = openvino, part["settings"]
        core = openvino.Core()
        core.set_property({"ENABLE_MMAP": True})
        model = str(folder / part["files"]["model"])
        self._request = core.compile_model(model, "CPU", settings["properties"]).create_infer_request()
        self._ports = settings["ports"]
        self._passed = {int(output): given for output, given in settings["passed"].items()}
        self._shapes = [spec["shape"] for spec in part["outputs"]]

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for port, array in zip(self._ports, arrays, strict=True):
            if port is not None:
                # OpenVINO knows int64 as long, not as long long.
                plain = array.view(np.dtype(array.dtype.name))
                self._request.set_input_tensor(port, self._ov.Tensor(plain, shared_memory=True))
        self._request.infer()
        return [
            arrays[self._passed[i]].reshape([-1 if size is None else size for size in shape])
            if i in self._passed
            else np.array(self._request.get_output_tensor(i).data)
            for i, shape in enumerate(self._shapes)
        ]


class MnnPart:
    """A partition on MNN."""

    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        import MNN.expr
        import MNN.nn

        self._expr, settings = MNN.expr, part["settings"]
        # MNN starts its threads once in a process, so the most that are needed are started first.
        for count in settings["threads"]:
            config = {"backend": "CPU", "numThread": count, "precision": settings["precision"]}
            self._runtime = MNN.nn.create_runtime_manager((config,))
        self._runtime.set_hint(*settings["winograd"])
        modes = self._expr.PrecisionMode
        precision = {"low": modes.Low, "normal": modes.Normal, "high": modes.High}
        self._module = MNN.nn.load_module_from_file(
            str(folder / part["files"]["model"]),
            _names(part["inputs"]),
            _names(part["outputs"]),
            shape_mutable=part.get("any_size", False),
            precision_mode=precision[settings["precision"]],
            runtime_manager=self._runtime,
        )
        self._variables = [
            self._expr.placeholder(spec["shape"], self._expr.NCHW, getattr(self._expr, kind))
            for spec, kind in zip(part["inputs"], settings["at_border"], strict=True)
        ]
        self._outputs = part["outputs"]

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for variable, array in zip(self._variables, arrays, strict=True):
            variable.write(array)
        made = self._module.forward(self._variables)
        return [self._fetch(*pair) for pair in zip(made, self._outputs, strict=True)]

    def _fetch(self, variable: Any, spec: dict[str, Any]) -> np.ndarray:
        if variable.data_format == self._expr.NC4HW4:
            variable = self._expr.convert(variable, self._expr.NCHW)
        return np.array(variable.read(), dtype=spec["dtype"]).reshape(spec["shape"])


class NcnnPart:
    """A partition on ncnn."""

    def __init__(self, folder: Path, part: dict[str, Any]) -> None:
        import ncnn

        self._net = ncnn.Net()
        for name, value in part["settings"]["options"].items():
            setattr(self._net.opt, name, value)
        files = part["files"]
        failed = self._net.load_param(str(folder / files["parameters"]))
        if failed or self._net.load_model(str(folder / files["weights"])):
            raise PackageError("ncnn could not load its model; write the package again")
        # ncnn's matrices have no batch dimension.
        self._shapes = [
            tuple(spec["shape"][1:] if batched else spec["shape"])
            for spec, batched in zip(part["inputs"], part["settings"]["batched"], strict=True)
        ]
        self._matrices = [ncnn.Mat(np.zeros(s, np.float32)).clone() for s in self._shapes]
        self._views = [np.array(matrix, copy=False) for matrix in self._matrices]
        self._outputs = part["outputs"]

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for view, array, shape in zip(self._views, arrays, self._shapes, strict=True):
            np.copyto(view, array.reshape(shape))
        extractor = self._net.create_extractor()
        for i, matrix in enumerate(self._matrices):
            extractor.input(f"in{i}", matrix)
        made = []
        for i, spec in enumerate(self._outputs):
            failed, matrix = extractor.extract(f"out{i}")
            if failed:
                raise PackageError(f"ncnn could not compute {spec['name']!r}")
            made.append(np.array(matrix, dtype=np.float32).reshape(spec["shape"]))
        return made


PARTS: dict[str, Any] = {
    "by_size": lambda *a: run_path(str(Path(__file__).with_name("by_size.py")))["Parts"](*a, PARTS),
    "onnxruntime": OnnxRuntimePart,
    "openvino": OpenVinoPart,
    "mnn": MnnPart,
    "ncnn": NcnnPart,
}


class Session:
    """A package that is ready to run, with the calls that ONNX Runtime has.

    Attributes:
        variant: which variant of the package runs: one for this kind of machine, or `plain`.
        why: why it was chosen.
        variants: what the manifest says of each.
        threads: threads of one call.
    """

    def __init__(
        self,
        folder: str | Path = Path(__file__).parent,
        *,
        variant: str | None = None,
        check: bool = True,
    ) -> None:
        """Open a package; raises PackageError where it cannot run here or was changed.

        Args:
            variant: which one to run; None for the one that suits this machine, else `plain`.
            check: compare the files with their SHA-256, and the outputs with those of the self-test.
        """
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._lock = threading.Lock()
        self._root = Path(folder)
        if check:
            _check_files(self._root)
        manifest = json.loads((self._root / MANIFEST).read_text(encoding="utf-8"))
        (component,) = manifest["components"].values()
        self.variants: dict[str, Any] = component["variants"]
        described = manifest["additional_metadata"][NAMESPACE]
        self._inputs = [NodeArg(spec) for spec in described["inputs"]]
        self._outputs = [NodeArg(spec) for spec in described["outputs"]]
        self._tolerance: float = described["tolerance"]
        if variant is not None and variant not in self.variants:
            raise PackageError(f"there is no variant {variant!r}; there are {sorted(self.variants)}")
        # Those with the versions that are installed come first, the fallback comes last.
        order = sorted(self.variants, key=lambda n: (n == PLAIN, bool(_fit(self.variants[n])[1])))
        problems = []
        for name in order if variant is None else [variant]:
            if (problem := self._opened(name, check)) is None:
                if others := _fit(self.variants[name])[1]:
                    problems.append(f"{name}: {others}; it was built anew, and its outputs are right")
                self.variant, self.why = name, "; ".join(problems) or "it suits this machine"
                return
            problems.append(f"{name}: {problem}")
        raise PackageError("no variant can run here: " + "; ".join(problems))

    def _opened(self, name: str, check: bool) -> str | None:
        """Why a variant cannot run here; None when it is open."""
        problem, others = _fit(self.variants[name])
        if problem:
            return problem
        plan = self.variants[name]["executor_info"][NAMESPACE]
        self.threads: int = plan.get("threads", 1)
        place = self._root / self.variants[name].get("variant_directory", name)
        with np.load(place / plan["constants"]) as kept:
            self._constants = dict(zip(plan["constant_names"], map(kept.get, kept.files), strict=True))
        try:
            self._parts = [
                (PARTS[part["runtime"]](place, part), _names(part["inputs"]), _names(part["outputs"]))
                for part in plan["partitions"]
            ]
            if check or others:  # what was made by other versions must prove itself
                self.self_test()
        except Exception as error:
            if not others:
                raise
            return f"{others}, and so it fails: {error}"
        return None

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return list(self._outputs)

    def run(self, output_names: list[str] | None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Compute outputs from inputs; raises ValueError for wrong ones. Calls from several threads take turns."""
        known = [output.name for output in self._outputs]
        names = known if output_names is None else list(output_names)
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"unknown outputs {unknown}; the model has {known}")
        values = self._checked(feed)
        with self._lock:
            for part, inputs, outputs in self._parts:
                made = part.run([values[name] for name in inputs])
                values.update(zip(outputs, made, strict=True))
        return [values[name] for name in names]

    def _checked(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        wanted = {spec.name for spec in self._inputs}
        if feed.keys() != wanted:
            missing, unknown = sorted(wanted - feed.keys()), sorted(feed.keys() - wanted)
            raise ValueError(f"inputs missing: {missing or 'none'}, unknown: {unknown or 'none'}")
        values = {name: array.copy() for name, array in self._constants.items()}
        for spec in self._inputs:
            array = np.asarray(feed[spec.name])
            if array.dtype.name != spec.dtype:
                raise ValueError(
                    f"input {spec.name!r} must be an array of {spec.dtype}, not {array.dtype.name}"
                )
            if set(map(type, spec.shape)) <= {int} and list(array.shape) != list(spec.shape):
                raise ValueError(
                    f"input {spec.name!r} must have shape {spec.shape}, not {[*array.shape]}"
                )
            values[spec.name] = np.ascontiguousarray(array).reshape(array.shape)
        return values

    def self_test(self) -> float:
        """Run the samples of the self-test; the largest error, relative to an output's largest magnitude."""
        worst = 0.0
        with np.load(self._root / SELF_TEST) as kept:
            arrays = [kept[f"arr_{i}"] for i in range(len(kept.files))]
            count = len(self._inputs)
            for i in range(0, len(arrays), count + len(self._outputs)):
                feed = {spec.name: arrays[i + n] for n, spec in enumerate(self._inputs)}
                for n, made in enumerate(self.run(None, feed)):
                    error = _error(made, arrays[i + count + n])
                    if not error <= self._tolerance:
                        raise PackageError(
                            f"output {self._outputs[n].name!r} differs from the self-test by {error:.3g} of "
                            f"{self._tolerance:.3g} allowed; a runtime computes something else here: run the "
                            'variant "plain", or tune on this machine'
                        )
                    worst = max(worst, error)
        return worst

    def close(self) -> None:
        """Give back memory; may be called twice."""
        self._parts = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fit(variant: dict[str, Any]) -> tuple[str, str]:
    """Why a variant cannot run on this machine, and which versions are not its own; both empty normally."""
    plan = variant["executor_info"][NAMESPACE]
    machine, others = plan["machine"], []
    if machine.get("architecture", platform.machine()) != platform.machine():
        return f"it is for {machine['architecture']}, and this is {platform.machine()}", ""
    if lacking := sorted(set(machine.get("features", ())) - cpu_flags()):
        return f"this processor lacks {', '.join(lacking)}", ""
    for distribution, version in plan["requirements"].items():
        try:
            found = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return f"{distribution} is not installed: pip install -r requirements.txt", ""
        if found != version:
            others.append(f"{distribution} is {found}, not {version}")
    return "", ", ".join(others)


def cpu_flags() -> set[str]:
    """Flags of this processor as Linux names them; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    found = [line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))]
    return set(" ".join(found).split())


def _check_files(root: Path) -> None:
    for line in (root / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        file = root / name
        if not file.is_file():
            raise PackageError(f"{name} is missing; copy the package again")
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise PackageError(f"{name} was changed; copy the package again")


def _error(made: np.ndarray, wanted: np.ndarray) -> float:
    if made.shape != wanted.shape:
        return float("inf")
    if not wanted.size or wanted.dtype.kind not in "fiuc":
        return 0.0 if np.array_equal(made, wanted) else float("inf")
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isfinite(made), finite):
        return float("inf")
    ours, theirs = made[finite].astype(complex), wanted[finite].astype(complex)
    scale = max(float(np.abs(theirs).max(initial=0.0)), 1e-30)
    return float(np.abs(ours - theirs).max(initial=0.0)) / scale


if __name__ == "__main__":
    try:
        with Session() as opened:
            print(f"variant {opened.variant} ({opened.why}): all files as written, outputs right")
    except PackageError as error:
        sys.exit(f"runner: {error}")

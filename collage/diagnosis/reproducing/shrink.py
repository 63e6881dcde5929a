"""A failing region made small: fewer samples, and shorter axes of weights and inputs, while it still fails.

An axis is known by its size alone: every axis of that size of inputs and constants, and every equal number in
a small constant of shapes, is cut to one new size. Where that makes no model that runs, nothing is changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from collage.backends.contract import SubModel
from collage.backends.numerics.reference import reference_session, run_session, session_types
from collage.backends.numerics.tensor_files import read_expected, read_samples, write_samples
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.diagnosis.trial import Trial, TrialRequest
from collage.partitioner.tensor import TensorSpec

_SIZES = (2, 8)
_LEAST_AXIS, _SMALL_CONSTANT = 4, 16
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Shrunk:
    """A request that fails, and the trial that says so."""

    request: TrialRequest
    trial: Trial


def shrink(
    start: Shrunk,
    folder: Path,
    run: Callable[[TrialRequest, str], Trial],
    most_trials: int,
    cancel: threading.Event | None = None,
) -> Shrunk:
    """Make a failing request small.

    Args:
        start: the request, and how it failed.
        folder: an empty folder for what is made; the result's files are there.
        run: makes a trial.
        most_trials: how many trials there are.

    Returns:
        The smallest request that failed in the same way; the given one where none did.
    """
    shrinker = _Shrinker(start, folder, run, most_trials, cancel)
    shrinker.samples()
    shrinker.axes()
    return shrinker.best


class _Shrinker:
    def __init__(
        self,
        start: Shrunk,
        folder: Path,
        run: Callable[[TrialRequest, str], Trial],
        most_trials: int,
        cancel: threading.Event | None,
    ) -> None:
        self.best = start
        self._folder, self._run, self._cancel = folder, run, cancel
        self._left, self._made = most_trials, 0

    def samples(self) -> None:
        """Keep only the sample that failed."""
        wrong, request = self.best.trial.wrong, self.best.request
        samples = read_samples(request.inputs_path, request.model.inputs)
        if wrong is None or len(samples) < 2:
            return
        expected = read_expected(request.expected_path, request.model.outputs)
        folder = self._new_folder()
        write_samples(folder / "inputs.npz", [samples[wrong.sample]])
        write_samples(folder / "expected.npz", [expected[wrong.sample]])
        self._keep_if_it_fails(
            replace(request, inputs_path=folder / "inputs.npz", expected_path=folder / "expected.npz"),
            "with one sample",
        )

    def axes(self) -> None:
        """Cut axes, those of most elements first."""
        done: set[int] = set()
        while self._left > 0:
            sizes = [size for size in self._sizes() if size not in done]
            if not sizes:
                return
            done.add(sizes[0])
            for small in dict.fromkeys((*_SIZES, sizes[0] // 2)):
                if small < sizes[0] and self._left > 0 and self._cut(sizes[0], small):
                    done.add(small)
                    break

    def _sizes(self) -> list[int]:
        model = self.best.request.model
        try:
            found: list[int] = run_in_child(
                axis_sizes, model.path, limits=ChildLimits(timeout_s=_TIMEOUT_S), cancel=self._cancel
            )
        except ChildFailed:
            return []
        return found

    def _cut(self, size: int, small: int) -> bool:
        folder, request = self._new_folder(), self.best.request
        try:
            made = run_in_child(
                cut_axes,
                request.model,
                request.inputs_path,
                folder,
                size,
                small,
                limits=ChildLimits(timeout_s=_TIMEOUT_S),
                cancel=self._cancel,
            )
        except ChildFailed:
            return False  # it makes no model that runs
        return self._keep_if_it_fails(
            replace(
                request,
                model=made,
                inputs_path=folder / "inputs.npz",
                expected_path=folder / "expected.npz",
            ),
            f"with axes of {size} cut to {small}",
        )

    def _keep_if_it_fails(self, request: TrialRequest, what: str) -> bool:
        self._left -= 1
        trial = self._run(request, what)
        fails = trial.outcome == self.best.trial.outcome
        if fails:
            self.best = Shrunk(request, trial)
        return fails

    def _new_folder(self) -> Path:
        self._made += 1
        folder = self._folder / f"shrunk-{self._made}"
        folder.mkdir(parents=True)
        return folder


def axis_sizes(path: Path) -> list[int]:
    """Sizes of axes of inputs and constants, those that hold most elements first; runs in the child."""
    graph = onnx.load(path).graph
    weight: Counter[int] = Counter()
    shapes = [tuple(tensor.dims) for tensor in graph.initializer]
    shapes += [tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in graph.input]
    for shape in shapes:
        elements = int(np.prod(shape, dtype=np.int64))
        for size in set(shape):
            if size >= _LEAST_AXIS:
                weight[size] += elements
    return [size for size, _ in weight.most_common()]


def cut_axes(model: SubModel, inputs: Path, folder: Path, size: int, small: int) -> SubModel:
    """The model with all axes of one size cut, with new samples and reference values; runs in the child.

    Raises:
        Exception: it makes no model that runs.
    """
    proto = onnx.load(model.path)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(_cut_constant(tensor, size, small))
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "group" and attribute.i == size:
                attribute.i = small
    del proto.graph.value_info[:]
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = small
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    proto = shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    samples = [
        {name: _cut_array(value, size, small) for name, value in sample.items()}
        for sample in read_samples(inputs, model.inputs)
    ]
    session = reference_session(path)
    names = [spec.name for spec in model.outputs]
    made = [run_session(session, sample, names) for sample in samples]
    if any(
        value.dtype.kind in "fc" and not np.isfinite(value).all() for m in made for value in m.values()
    ):
        raise ValueError("the reference is not finite")
    write_samples(folder / "inputs.npz", samples)
    write_samples(folder / "expected.npz", made)
    types = session_types(path, names)
    return replace(
        model,
        path=path,
        inputs=tuple(_spec(spec, size, small) for spec in model.inputs),
        outputs=tuple(
            _output_spec(spec, types, [m[spec.name] for m in made]) for spec in model.outputs
        ),
        calibration=None,
    )


def _cut_constant(tensor: onnx.TensorProto, size: int, small: int) -> onnx.TensorProto:
    array = numpy_helper.to_array(tensor)
    if tensor.data_type == onnx.TensorProto.INT64 and array.size <= _SMALL_CONSTANT:
        array = np.where(array == size, small, array)
    if size not in array.shape and tensor.data_type != onnx.TensorProto.INT64:
        return tensor
    if tensor.data_type in (onnx.TensorProto.STRING,):
        return tensor
    cut = _cut_array(array, size, small)
    return helper.make_tensor(tensor.name, tensor.data_type, cut.shape, cut.tobytes(), raw=True)


def _cut_array(array: np.ndarray, size: int, small: int) -> np.ndarray:
    where = tuple(slice(0, small) if length == size else slice(None) for length in array.shape)
    return np.ascontiguousarray(array[where]).reshape(
        [small if length == size else length for length in array.shape]
    )


def _spec(spec: TensorSpec, size: int, small: int) -> TensorSpec:
    shape = tuple(small if d == size else d for d in spec.shape) if spec.shape is not None else None
    return replace(spec, shape=shape)


def _output_spec(
    spec: TensorSpec, types: dict[str, TensorSpec], made: Sequence[np.ndarray]
) -> TensorSpec:
    """The type that was inferred; where samples differ from it, a shape known only at run time."""
    shape = types[spec.name].shape if spec.name in types else None
    if any(shape != value.shape for value in made):
        shape = tuple(None for _ in made[0].shape)
    return replace(spec, shape=shape)

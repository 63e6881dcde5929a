"""MNN: what every backend must do, and the names in its profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.coexistence.kernels import kernel
from collage.backends.contract import Available, CompileContext, SubModel
from collage.backends.mnn.backend import MnnBackend
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import run_reference
from collage.backends.sandbox.run import run_in_child
from collage.backends.testing.conformance import BackendConformance
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import buffers, compiled, prepare
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.forms import parsed, weights
from tests.models import seeded_input

BACKEND = MnnBackend()
# An extra, which `make test` installs.
needs_mnn = pytest.mark.skipif(
    not isinstance(BACKEND.probe(), Available), reason="MNN is not installed"
)


class TestMnn(BackendConformance):
    backend = BACKEND


@needs_mnn
@pytest.mark.parametrize(("case", "op"), [("grouped_conv", "Conv"), ("dense", "MatMul")])
def test_steps_that_the_converter_renames_are_found_again(case: str, op: str, tmp_path: Path) -> None:
    # A grouped convolution becomes one step a group, a product with constant weights a convolution.
    (chosen,) = (c for c in CASES if c.name == case)
    prepared = prepare(chosen, tmp_path)
    executable = compiled(BACKEND, Target("mnn"), prepared.model, tmp_path)
    executable.bind(prepared.inputs, buffers(prepared))
    steps = executable.profile(2)
    executable.close()
    kinds = [step.kind for step in steps if any(op in node for node in step.nodes)]
    assert "Convolution" in kinds


@needs_mnn
def test_large_winograd_tiles_are_left_out(tmp_path: Path) -> None:
    model = kernel(56, tmp_path / "model.onnx")
    given = seeded_input((1, 64, 56, 56), "float32", 2)
    ((_, wanted),) = run_reference(
        model.path, {model.inputs[0].name: given}, [model.outputs[0].name]
    ).items()
    errors = {}
    for options in ("", "-winograd=large"):
        work = tmp_path / f"work{options}"
        work.mkdir()
        executable = BACKEND.compile(model, Target.parse(f"mnn {options}"), CompileContext(2, work))
        made = np.empty_like(wanted)
        executable.bind([given], [made])
        executable.run()
        errors[options] = output_error("max", [made], [wanted])
        executable.close()
    assert errors[""] < 1e-5 < errors["-winograd=large"] < 1e-2


def threads_started(*options: str) -> int:
    """The number of threads of this process after MNN got these options in turn. Runs in a child."""
    model = kernel(12, Path("model.onnx").absolute())
    for i, text in enumerate(options):
        work = Path(f"work{i}").absolute()
        work.mkdir()
        BACKEND.compile(model, Target.parse(f"mnn {text}"), CompileContext(5, work))
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.mark.slow
@needs_mnn
def test_fewer_threads_first_leave_no_fewer_for_the_next() -> None:
    assert run_in_child(threads_started, "-threads=2", "") == run_in_child(threads_started, "")
    assert run_in_child(threads_started, "") == run_in_child(threads_started, "-threads=4") > 4


@needs_mnn
def test_outputs_of_its_own_have_their_shape(tmp_path: Path) -> None:
    """MNN computes what runs along one axis with a fourth, and gives it so."""
    proto = parsed("g (float[1, 4, 9] x) => (float[1, 8, 7] y) { y = Conv(x, w) }", w=weights(8, 4, 3))
    onnx.save(proto, tmp_path / "m.onnx")
    x, y = TensorSpec("x", "float32", (1, 4, 9)), TensorSpec("y", "float32", (1, 8, 7))
    executable = BACKEND.compile(
        SubModel(tmp_path / "m.onnx", (x,), (y,)), Target("mnn"), CompileContext(1, tmp_path)
    )
    executable.bind([seeded_input((1, 4, 9), "float32", 1)], [None])
    executable.run()
    assert executable.results[0].shape == (1, 8, 7)
    executable.close()

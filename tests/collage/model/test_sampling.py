"""A reference that cannot be compared with is refused; what was not compared is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.events import ignore
from collage.model.reference import ingest
from collage.model.sampling import Sampling
from collage.options import TuneOptions
from collage.partitioner.errors import ModelError
from tests.shipped_models.test_ingest import saved


def _sampling(body: str, folder: Path, inputs: Path | None = None, made: str = "float") -> Sampling:
    text = f"m (float[4, 8] x) => ({made}[4, 8] y) <float zero = {{0}}> {{ {body} }}"
    model, info = ingest(saved(text, folder), folder)
    return Sampling(
        model=model,
        info=info,
        options=TuneOptions(),
        work_dir=folder,
        inputs=inputs,
        hold_out=False,
        listener=ignore,
        cancel=None,
    )


def test_infinite_elements_of_the_reference_are_counted(tmp_path: Path) -> None:
    sampling = _sampling("a = Relu(x)  y = Log(a)", tmp_path)
    sampling.check_reference()
    (told,) = sampling.about_outputs()
    assert (
        "of 32 elements of the reference output 'y' are infinite or NaN and were not compared" in told
    )


def test_reference_without_a_finite_element_is_refused(tmp_path: Path) -> None:
    sampling = _sampling("a = Mul(x, zero)  b = Abs(a)  y = Log(b)", tmp_path)
    with pytest.raises(ModelError, match=r"no element of the reference output 'y' is finite.*--inputs"):
        sampling.check_reference()


@pytest.mark.parametrize(
    ("made", "body"), [("float", "y = Log(x)"), ("bfloat16", "a = Log(x)  y = Cast<to = 16>(a)")]
)
def test_nan_in_the_reference_is_refused(made: str, body: str, tmp_path: Path) -> None:
    sampling = _sampling(body, tmp_path, made=made)
    with pytest.raises(ModelError, match=r"the reference output 'y' has NaN.*--inputs"):
        sampling.check_reference()


def test_time_for_the_proof_is_expected_where_its_values_are_not_known(
    tmp_path: Path,
) -> None:
    sampling = _sampling("y = Relu(x)", tmp_path)
    sampling.check_reference()
    assert sampling.proof_s(is_rewritten=False) == 0.0
    assert sampling.proof_s(is_rewritten=True) > 0.0
    given = tmp_path / "given.npz"
    np.savez(given, x=np.ones((6, 4, 8), np.float32))
    (tmp_path / "beside").mkdir()
    beside = _sampling("y = Relu(x)", tmp_path / "beside", given)
    beside.check_reference()
    assert beside.proof_s(is_rewritten=True) > beside.proof_s(is_rewritten=False) > 0.0

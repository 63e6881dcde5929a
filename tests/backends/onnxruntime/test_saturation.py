"""Which models may overflow in 16 bits, where, and what is compared then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.support.ort_session import options_of
from collage.cost_db.database import CostDatabase
from collage.events import Event
from collage.model.reference import ingest
from collage.options import TuneOptions
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.tuning import prepare
from collage.tuning.run import Run, TuneRequest
from tests.shipped_models.test_ingest import saved

OLD = ("avx", "avx2", "fma", "sse4_2")
SCALES = "float s = {0.1}, uint8 u = {128}, int8 i = {0}"
WEIGHTS = "int8[2, 2] w = {127, 127, -128, 127}"
QDQ = f"""
    m (float[1, 2] x) => (float[1, 2] y) <{SCALES}, {WEIGHTS}> {{
        q = QuantizeLinear(x, s, u)
        a = DequantizeLinear(q, s, u)
        b = DequantizeLinear(w, s, i)
        y = MatMul(a, b)
    }}
"""
DYNAMIC = f"""
    m (float[1, 2] x) => (int32[1, 2] y) <{WEIGHTS}, int8 i = {{0}}> {{
        q, s, z = DynamicQuantizeLinear(x)
        y = MatMulInteger(q, w, z, i)
    }}
"""
QLINEAR = f"""
    m (uint8[1, 2] x) => (uint8[1, 2] y) <{SCALES}, {WEIGHTS}> {{
        y = QLinearMatMul(x, s, u, w, s, i, s, u)
    }}
"""
FLOAT = "m (float[1, 2] x) => (float[1, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"
BOTH_SIGNED = QDQ.replace("uint8 u = {128}", "int8 u = {0}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "features", "found"),
    [
        (QDQ, OLD, True),
        (DYNAMIC, OLD, True),
        (QLINEAR, OLD, True),
        (FLOAT, OLD, False),
        (BOTH_SIGNED, OLD, False),
        (QDQ, (*OLD, "avx512f", "avx512bw"), True),
        (QDQ, (*OLD, "avx512_vnni"), False),
        (QDQ, (*OLD, "avx_vnni"), False),
        (QDQ, ("asimd",), False),
    ],
)
def test_exact_form_where_products_may_overflow(
    tmp_path: Path, text: str, features: tuple[str, ...], found: bool
) -> None:
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    forms = OnnxRuntimeBackend().exact_forms(
        Target.parse("onnxruntime -threads=1"), model.index, features
    )
    assert list(map(str, forms)) == (["onnxruntime -threads=1 -u8s8=exact"] if found else [])


@pytest.mark.parametrize(
    "target", ["onnxruntime -u8s8=fast", "onnxruntime -u8s8=exact", "onnxruntime -ep=cuda"]
)
def test_stated_option_and_other_providers_stay(tmp_path: Path, target: str) -> None:
    model, _ = ingest(saved(QDQ, tmp_path), tmp_path)
    assert not OnnxRuntimeBackend().exact_forms(Target.parse(target), model.index, OLD)


class OldRunner(Runner):
    """This machine, as if its processor had no VNNI."""

    @property
    def hardware(self):  # type: ignore[no-untyped-def]
        return replace(super().hardware, features=OLD)


def test_tuning_compares_the_exact_form_too(tmp_path: Path) -> None:
    said: list[Event] = []
    run = Run(CostDatabase(f"sqlite:///{tmp_path}/c.db"), tmp_path, OldRunner(), listener=said.append)
    targets = (Target.parse("onnxruntime"), Target.parse("openvino"))
    ingested = prepare.ingest(run, TuneRequest(saved(QDQ, tmp_path), targets, TuneOptions()), {})
    assert list(map(str, ingested.request.targets)) == [
        "onnxruntime",
        "openvino",
        "onnxruntime -u8s8=exact",
    ]
    assert len(ingested.facts) == 3
    assert any("onnxruntime -u8s8=exact" in event.message for event in said)


def test_exact_form_sets_what_onnxruntime_reads_and_computes(tmp_path: Path) -> None:
    context = CompileContext(1, tmp_path, tmp_path / "cache")
    exact = Target.parse("onnxruntime -u8s8=exact")
    for target, value in ((exact, "1"), (Target.parse("onnxruntime"), None)):
        options = options_of(target, context)
        if value is None:
            with pytest.raises(RuntimeError):
                options.get_session_config_entry("session.x64quantprecision")
        else:
            assert options.get_session_config_entry("session.x64quantprecision") == value
    model, info = ingest(saved(QDQ, tmp_path), tmp_path)
    sub_model = SubModel(model.path, info.inputs, (model.index.values["y"],))
    executable = OnnxRuntimeBackend().compile(sub_model, exact, context)
    made = np.zeros((1, 2), np.float32)
    executable.bind([np.array([[12.7, 12.7]], np.float32)], [made])
    executable.run()
    np.testing.assert_allclose(made, [[12.7 * -0.1, 12.7 * 25.4]], rtol=1e-5)
    executable.close()


def test_option_is_refused_on_other_providers() -> None:
    target = Target.parse("onnxruntime -ep=cuda -u8s8=exact")
    assert "use it without -ep" in (OnnxRuntimeBackend().check_target(target) or "")

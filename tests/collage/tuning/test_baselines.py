"""What writing the artifact is expected to take, by stated measurements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.partitioner.target import Target
from collage.tuning import baselines
from collage.tuning.baselines import _expected_s

_PLAIN, _INT8 = Target.parse("onnxruntime"), Target.parse("onnxruntime -int8=dynamic")


def _emit_s(
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    weights_bytes: int = 0,
    ingest_s: float = 9.0,
    is_part: bool = False,
) -> float:
    """Seconds of writing where compiling took 4 s, a call 0.1 s, and a reference 3 s."""
    monkeypatch.setattr(baselines, "total_bytes", lambda _: weights_bytes)
    row = SimpleNamespace(latency_us=1e5, compile_s=4.0)
    prepares = {_PLAIN: None, _INT8: "it is stated"}
    allowed: Any = SimpleNamespace(
        run=SimpleNamespace(
            clock=SimpleNamespace(seconds={"ingest": ingest_s}),
            runner=SimpleNamespace(facts=lambda t: SimpleNamespace(preparation=prepares[t])),
        ),
        sampling=SimpleNamespace(compared=[], proof_s=lambda is_rewritten: 3.0 * is_rewritten),
        request=SimpleNamespace(options=SimpleNamespace(time_limit_s=60.0), is_part=is_part),
        model=SimpleNamespace(ir=SimpleNamespace(graph=SimpleNamespace(initializers={}))),
    )
    singles: Any = SimpleNamespace(rows=lambda: {target: row}, seconds={})
    return _expected_s(cast(Any, singles), allowed)[1]


def test_a_rewritten_model_has_a_reference_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_s = _emit_s(monkeypatch, _PLAIN)
    assert plain_s == pytest.approx(6.5)
    assert _emit_s(monkeypatch, _INT8) == plain_s + 3.0


def test_large_weights_take_time_to_copy_but_no_more_than_reading_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_s = _emit_s(monkeypatch, _PLAIN)
    assert _emit_s(monkeypatch, _PLAIN, 200_000_000) == pytest.approx(small_s + 4.0)
    assert _emit_s(monkeypatch, _PLAIN, 2_000_000_000) == pytest.approx(small_s + 9.0)


def test_a_search_within_a_range_of_sizes_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _emit_s(monkeypatch, _PLAIN, is_part=True) == 0.0

"""What writing the artifact is expected to take, and which targets come late, by stated measurements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.partitioner.target import Target
from collage.tuning import baselines
from collage.tuning.baselines import _as_far_off, _expected_s, _keeper

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


def test_a_target_that_is_too_far_off_is_late_with_what_reduces_more() -> None:
    texts = ("openvino", "openvino -precision=bf16", "openvino -quant=static_int8", "mnn")
    targets = [Target.parse(text) for text in texts]
    both = Target.parse("openvino -precision=bf16 -quant=static_int8")
    assert _as_far_off(targets[2], [*targets, both]) == {targets[2], both}


@pytest.mark.parametrize(
    ("keeping", "keeper", "far"),
    [
        (["openvino -quant=static_int8"], "openvino -quant=static_int8", 0),
        (["openvino -precision=bf16"], "openvino -precision=bf16", 1),
        (["mnn"], None, 2),
    ],
)
def test_the_fastest_whole_model_that_keeps_the_task_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, keeping: list[str], keeper: str | None, far: int
) -> None:
    alone_us = {"openvino": 20.0, "mnn": 30.0, "openvino -precision=bf16": 12.0}
    alone_us |= {"openvino -quant=static_int8": 10.0}
    latencies_us = {Target.parse(text): us for text, us in alone_us.items()}
    known: Any = SimpleNamespace(
        task="it is stated",
        out_of_time=False,
        single_targets=SimpleNamespace(latencies_us=lambda: latencies_us),
        exact_us=lambda us: {t: us[t] for t in us if not t.options},
    )
    monkeypatch.setattr(baselines, "_keeps_task", lambda _, target: str(target) in keeping)
    found, too_far = _keeper(known, Target.parse("openvino -quant=static_int8"))
    assert (None if found is None else str(found), len(too_far)) == (keeper, far)

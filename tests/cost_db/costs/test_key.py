"""The key of a cost: a digest that stays the same between versions."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from collage.cost_db.costs.key import CostKey

texts = st.tuples(*[st.text(alphabet='ab"\\,é', max_size=3)] * 5)


def test_digest_never_changes_between_versions() -> None:
    key = CostKey("a", "openvino -precision=bf16", "2026.4.1", "hw", "1")
    assert key.digest == "5d07a93c51e7b35712044f399173960b29b159e431920516fb6aa1b0539535b6"


@given(texts, texts)
def test_digests_are_equal_exactly_when_all_texts_are(
    left: tuple[str, ...], right: tuple[str, ...]
) -> None:
    one, other = CostKey(*left), CostKey(*right)
    assert (one.digest == other.digest) == (astuple(one) == astuple(other))

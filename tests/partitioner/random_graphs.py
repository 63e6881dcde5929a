"""Random models for property tests: small graphs with forks, joins, taps and several outputs."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.partitioner.graphs import TextModel, text_model

_FORMS = ("Relu({0})", "Exp({0})", "Add({0}, {1})", "Concat <axis = 0> ({0}, {1})", "ReduceSum({0})")


@st.composite
def random_models(draw: st.DrawFn, max_nodes: int = 14) -> TextModel:
    """A random model of elementwise, injective and reducing operators."""
    count = draw(st.integers(1, max_nodes))
    steps = []
    for i in range(count):
        before = st.sampled_from([f"v{j}" for j in range(i)] + ["x", "w"])
        form = draw(st.sampled_from(_FORMS))
        steps.append(f"v{i} = {form.format(draw(before), draw(before))}")
    outputs = {count - 1, draw(st.integers(0, count - 1))}
    returned = ", ".join(f"float[k{j}] v{j}" for j in sorted(outputs))
    return text_model(f"g (float[4] x, float[4] w) => ({returned}) {{ {'  '.join(steps)} }}")

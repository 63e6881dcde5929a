"""Every pattern matches the piece of a model that it is named after."""

import pytest

from collage.backends import registry
from collage.backends.support import patterns
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target
from tests.partitioner.graphs import names, text_model

PATTERNS = {p.name: p for p in vars(patterns).values() if isinstance(p, Pattern)}
IMAGE = "g (float[1,3,8,8] x, float[3,3,1,1] w, float[3] s, float[1,3,8,8] r) => (float[1,3,8,8] y)"
WEIGHTS = ", ".join(["0.5"] * 64)
ROWS = (
    "g (float[4,8] x, float[8] b, float[8] s) => (float[4,8] y) <float[8,8] w = {%s}>" % WEIGHTS  # noqa: UP031
)
BODIES = {
    "conv_relu": (IMAGE, "c = Conv(x, w) y = Relu(c)"),
    "conv_clip": (IMAGE, "c = Conv(x, w) y = Clip(c)"),
    "conv_leaky_relu": (IMAGE, "c = Conv(x, w) y = LeakyRelu<alpha = 0.1>(c)"),
    "conv_sigmoid": (IMAGE, "c = Conv(x, w) y = Sigmoid(c)"),
    "conv_hard_swish": (IMAGE, "c = Conv(x, w) y = HardSwish(c)"),
    "conv_swish": (IMAGE, "c = Conv(x, w) g = Sigmoid(c) y = Mul(c, g)"),
    "conv_norm": (IMAGE, "c = Conv(x, w) y = BatchNormalization(c, s, s, s, s)"),
    "conv_norm_relu": (IMAGE, "c = Conv(x, w) n = BatchNormalization(c, s, s, s, s) y = Relu(n)"),
    "conv_add_relu": (IMAGE, "c = Conv(x, w, s) a = Add(c, r) y = Relu(a)"),
    "add_conv_relu": (IMAGE, "c = Conv(x, w) a = Add(r, c) y = Relu(a)"),
    "conv_sum_relu": (IMAGE, "c = Conv(x, w) a = Sum(c, r) y = Relu(a)"),
    "conv_norm_add_relu": (
        IMAGE,
        "c = Conv(x, w) n = BatchNormalization(c, s, s, s, s) a = Add(n, r) y = Relu(a)",
    ),
    "conv_norm_sum_relu": (
        IMAGE,
        "c = Conv(x, w) n = BatchNormalization(c, s, s, s, s) a = Sum(n, r) y = Relu(a)",
    ),
    "matmul_bias": (ROWS, "m = MatMul(x, w) y = Add(m, b)"),
    "bias_matmul": (ROWS, "m = MatMul(x, w) y = Add(b, m)"),
    "matmul_bias_gelu": (
        ROWS,
        "m = MatMul(x, w) a = Add(m, b) d = Div(a, s) e = Erf(d) o = Add(e, s) p = Mul(a, o) y = Mul(p, s)",
    ),
    "gemm_relu": (ROWS, "m = Gemm(x, w, b) y = Relu(m)"),
    "layer_norm": (
        "g (float[4,8] x, int64[1] a, float two, float e, float[8] s, float[8] b) => (float[4,8] y)",
        """m = ReduceMean(x, a) c = Sub(x, m) q = Pow(c, two) v = ReduceMean(q, a) t = Add(v, e)
        d = Sqrt(t) n = Div(c, d) k = Mul(n, s) y = Add(k, b)""",
    ),
    "layer_norm_axes_attribute": (
        "g (float[4,8] x, float two, float e, float[8] s, float[8] b) => (float[4,8] y)",
        """m = ReduceMean(x) c = Sub(x, m) q = Pow(c, two) v = ReduceMean(q) t = Add(v, e)
        d = Sqrt(t) n = Div(c, d) k = Mul(n, s) y = Add(k, b)""",
    ),
    "attention": (ROWS, "t = MatMul(x, w) p = Softmax(t) y = MatMul(p, w)"),
    "scaled_attention": (ROWS, "t = MatMul(x, w) d = Div(t, s) p = Softmax(d) y = MatMul(p, w)"),
    "masked_attention": (
        ROWS,
        "t = MatMul(x, w) d = Div(t, s) a = Add(d, b) p = Softmax(a) y = MatMul(p, w)",
    ),
    "lrn_max_pool": (
        "g (float[1,3,8,8] x) => (float[1,3,7,7] y)",
        "n = LRN<size = 3>(x) y = MaxPool<kernel_shape = [2, 2]>(n)",
    ),
}


def test_every_pattern_has_an_example() -> None:
    assert set(PATTERNS) == set(BODIES)


@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_pattern_matches_its_example_as_a_whole(name: str) -> None:
    header, body = BODIES[name]
    model = text_model(f"{header} {{ {body} }}")
    everything = names(model.index, model.index.all_nodes)
    assert [names(model.index, m) for m in PATTERNS[name].matches(model)] == [everything]


def test_product_without_constant_factor_is_not_fused_with_bias() -> None:
    text = """g (float[4,8] x, float[8,8] w, float[8] b) => (float[4,8] y) {
        m = MatMul(x, w) y = Add(m, b) }"""
    assert PATTERNS["matmul_bias"].matches(text_model(text)) == []


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "mnn", "ncnn"])
def test_every_runtime_offers_fused_convolutions(name: str) -> None:
    target = Target.parse(name)
    assert "conv_relu" in {p.name for p in registry.backends()[name].patterns(target)}

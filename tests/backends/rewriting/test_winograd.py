"""Winograd's algorithm computes what the convolution computes, and is written where it is meant to be and nowhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from collage.backends.rewriting.graph import RewriteGraph
from collage.backends.rewriting.passes.winograd import to_winograd
from tests.forms import converted, parsed, weights


@pytest.mark.parametrize(
    ("size", "pads"),
    [
        ((1, 24, 24), "[1, 1, 1, 1]"),  # 36 tiles of four, none over the edge
        ((1, 23, 26), "[1, 1, 1, 1]"),  # tiles that reach over it
        ((1, 26, 25), "[0, 0, 0, 0]"),
        ((1, 22, 24), "[2, 0, 1, 3]"),
        ((2, 13, 14), "[1, 1, 1, 1]"),  # of two images
        ((1, 14, 14), "[1, 1, 1, 1]"),  # 49 tiles of two
        ((3, 8, 8), "[1, 1, 1, 1]"),
    ],
)
def test_winograd_computes_what_the_convolution_computes(
    size: tuple[int, int, int], pads: str, tmp_path: Path
) -> None:
    batch, height, width = size
    model = parsed(
        f"""g (float[{batch}, 64, {height}, {width}] x) => (float y) {{
            a = Conv <pads = {pads}> (x, w, b)  y = Relu(a)
        }}""",
        w=weights(80, 64, 3, 3),
        b=weights(80),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and kinds.count("MatMul") == 4
    assert 0 < error < 2e-5


@pytest.mark.parametrize(
    ("attributes", "channels", "size"),
    [
        ("pads = [1, 1, 1, 1], strides = [2, 2]", 64, 48),
        ("pads = [6, 6, 6, 6], dilations = [6, 6]", 64, 33),  # of tiles a half is beyond the edge
        ('auto_pad = "SAME_UPPER", dilations = [2, 2]', 64, 24),  # ONNX Runtime refuses it
        ("pads = [1, 1, 1, 1]", 64, 13),  # 49 tiles of two, which reach over it
        ("pads = [1, 1, 1, 1], group = 2", 64, 24),  # 32 channels in a group
        ("pads = [1, 1, 1, 1]", 63, 24),
        ("pads = [1, 1, 1, 1]", 64, 10),  # 100 outputs
    ],
)
def test_winograd_leaves_other_convolutions(attributes: str, channels: int, size: int) -> None:
    groups = 2 if "group" in attributes else 1
    model = parsed(
        f"g (float[1, {channels}, {size}, {size}] x) => (float y) {{ y = Conv <{attributes}> (x, w) }}",
        w=weights(64, channels // groups, 3, 3),
    )
    assert to_winograd(RewriteGraph(model)) == 0
    assert [node.op_type for node in model.graph.node] == ["Conv"]


@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((1, 24, 24), "pads = [2, 2, 2, 2], dilations = [2, 2]"),
        (
            (1, 25, 30),
            "pads = [3, 3, 3, 3], dilations = [3, 3]",
        ),  # more rows in the first step than in the last
        ((2, 19, 16), "pads = [0, 4, 1, 0], dilations = [2, 2]"),
        ((1, 24, 27), "pads = [4, 4, 4, 4], dilations = [4, 4]"),
        ((1, 24, 25), "pads = [2, 1, 2, 1], dilations = [2, 1]"),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_winograd_goes_with_dilations(
    size: tuple[int, int, int], attributes: str, groups: int, tmp_path: Path
) -> None:
    batch, height, width = size
    model = parsed(
        f"""g (float[{batch}, {64 * groups}, {height}, {width}] x) => (float y) {{
            y = Conv <{attributes}, group = {groups}> (x, w, b)
        }}""",
        w=weights(80 * groups, 64, 3, 3),
        b=weights(80 * groups),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and 0 < error < 3e-5


@pytest.mark.parametrize(
    ("taps", "channels", "size", "attributes"),
    [
        (5, 48, (1, 27, 27), "pads = [2, 2, 2, 2], group = 2"),  # AlexNet's second
        (5, 48, (1, 14, 14), 'auto_pad = "SAME_LOWER"'),
        (5, 48, (2, 17, 22), "pads = [0, 4, 1, 0]"),
        (5, 48, (1, 24, 23), "pads = [4, 4, 4, 4], dilations = [2, 2]"),
        (7, 64, (1, 16, 16), "pads = [3, 3, 3, 3]"),
        (7, 64, (2, 21, 14), "pads = [0, 5, 2, 4]"),
        (7, 64, (1, 33, 32), "pads = [6, 6, 6, 6], dilations = [2, 2], group = 2"),
    ],
)
def test_winograd_goes_with_larger_kernels(
    taps: int, channels: int, size: tuple[int, int, int], attributes: str, tmp_path: Path
) -> None:
    groups = 2 if "group" in attributes else 1
    batch, height, width = size
    model = parsed(
        f"g (float[{batch}, {channels * groups}, {height}, {width}] x) => (float y) {{ y = Conv <{attributes}> (x, w) }}",
        w=weights(65 * groups, channels, taps, taps),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and 0 < error < {5: 3e-5, 7: 2e-4}[taps]


@pytest.mark.parametrize(
    ("size", "made"), [(24, (4, 4)), (16, (4, 4)), (14, (2, 2)), (12, (4, 2)), (28, (4, 4))]
)
def test_large_weights_favor_fewer_tiles(size: int, made: tuple[int, int]) -> None:
    """Fewer tiles are worth more products where there are more weights to read."""
    model = parsed(
        f"g (float[1, 64, {size}, {size}] x) => (float y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }}",
        w=weights(64, 64, 3, 3),
    )
    assert to_winograd(RewriteGraph(model)) == 1
    names = {tensor.name for tensor in model.graph.initializer}
    assert f"collage.winograd/{made[0]}of3x{made[1]}of3/data" in names


@pytest.mark.slow
@pytest.mark.parametrize("is_across", [True, False])
@pytest.mark.parametrize(
    ("taps", "size", "pads", "dilation", "groups"),
    [
        (3, (1, 4, 32), (1, 1), 1, 1),
        (5, (1, 3, 50), (2, 2), 1, 1),
        (5, (2, 1, 70), (0, 3), 1, 1),
        (7, (1, 2, 65), (3, 3), 1, 2),
        (7, (1, 1, 200), (9, 9), 3, 1),
        (9, (1, 1, 200), (4, 4), 1, 1),  # of two parts, from here on
        (9, (2, 3, 96), (8, 8), 2, 3),
        (11, (1, 1, 301), (25, 25), 5, 1),
        (13, (1, 1, 193), (6, 6), 1, 1),  # of three, the last with one place
    ],
)
def test_winograd_goes_along_one_axis(
    taps: int,
    size: tuple[int, int, int],
    pads: tuple[int, int],
    dilation: int,
    groups: int,
    is_across: bool,
    tmp_path: Path,
) -> None:
    def turned(other: int, along: int) -> list[int]:
        return [other, along] if is_across else [along, other]

    channels = 256 if taps == 3 else 64
    ends, dilations = [*turned(0, pads[0]), *turned(0, pads[1])], turned(1, dilation)
    shape = ", ".join(map(str, (size[0], channels * groups, *turned(*size[1:]))))
    model = parsed(
        f"""g (float[{shape}] x) => (float y) {{
            y = Conv <pads = {ends}, dilations = {dilations}, group = {groups}> (x, w, b)
        }}""",
        w=weights(channels * groups, channels, *turned(1, taps)),
        b=weights(channels * groups),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and 0 < error < 5e-5


@pytest.mark.parametrize("pad", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("taps", [7, 11])
def test_winograd_pads_along_one_axis_by_itself(taps: int, pad: str, tmp_path: Path) -> None:
    model = parsed(
        f'g (float[1, 64, 1, 200] x) => (float y) {{ y = Conv <auto_pad = "{pad}"> (x, w) }}',
        w=weights(64, 64, 1, taps),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and 0 < error < 5e-5


@pytest.mark.parametrize(
    ("channels", "size", "kernel"),
    [
        (32, (28, 28), (5, 5)),
        (64, (12, 12), (5, 5)),
        (64, (56, 56), (1, 1)),
        (64, (56, 56), (9, 9)),
        (64, (56, 56), (3, 5)),
        (64, (56, 56), (1, 6)),
        (32, (1, 500), (1, 7)),
        (192, (1, 500), (1, 3)),
        (64, (1, 127), (1, 7)),
        (48, (16, 16), (7, 7)),
    ],
)
def test_winograd_leaves_other_kernels(
    channels: int, size: tuple[int, int], kernel: tuple[int, int]
) -> None:
    pads = [side // 2 for side in kernel] * 2
    model = parsed(
        f"g (float[1, {channels}, {size[0]}, {size[1]}] x) => (float y) {{ y = Conv <pads = {pads}> (x, w) }}",
        w=weights(channels, channels, *kernel),
    )
    assert to_winograd(RewriteGraph(model)) == 0


def test_a_kernel_of_several_parts_goes_at_any_operator_set(tmp_path: Path) -> None:
    model = parsed(
        "g (float[1, 64, 1, 200] x) => (float y) { y = Conv <pads = [0, 5, 0, 5]> (x, w) }",
        opset=9,
        w=weights(64, 64, 1, 11),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and kinds.count("Gather") == 3 and 0 < error < 5e-5


@pytest.mark.parametrize("batch", [1, 2])
def test_winograd_goes_with_groups(batch: int, tmp_path: Path) -> None:
    model = parsed(
        f"""g (float[{batch}, 192, 22, 25] x) => (float y) {{
            a = Conv <pads = [1, 1, 1, 1], group = 3> (x, w, b)  y = Conv <group = 3> (a, v)
        }}""",
        w=weights(240, 64, 3, 3),
        b=weights(240),
        v=weights(195, 80, 3, 3, seed=1),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 2 and "Conv" not in kinds and 0 < error < 2e-5


@pytest.mark.parametrize(
    ("kernel", "size", "pads", "products"),
    [
        ((3, 3, 3), (1, 16, 12, 14), "[1, 1, 1, 1, 1, 1]", 6),  # tiles of four all along
        ((3, 3, 3), (1, 4, 14, 14), "[1, 1, 1, 1, 1, 1]", 6),  # slices two by two
        ((3, 3, 3), (2, 7, 7, 7), "[0, 1, 2, 2, 1, 0]", 6),  # tiles of two, other edges, an odd depth
        ((1, 3, 3), (2, 5, 12, 13), "[0, 1, 1, 0, 1, 1]", 4),
        ((3, 1, 1), (1, 8, 5, 6), "[1, 0, 0, 1, 0, 0]", 4),
        ((3, 1, 1), (1, 8, 6, 6), "[2, 0, 0, 0, 0, 0]", 4),
        ((1, 1, 9), (1, 5, 6, 40), "[0, 0, 4, 0, 0, 4]", 4),
        ((1, 7, 1), (2, 3, 28, 3), "[0, 3, 0, 0, 3, 0]", 4),
    ],
)
def test_winograd_goes_along_three_axes(
    kernel: tuple[int, int, int],
    size: tuple[int, ...],
    pads: str,
    products: int,
    tmp_path: Path,
) -> None:
    batch, *places = size
    shape = ", ".join(map(str, (batch, 64, *places)))
    model = parsed(
        f"""g (float[{shape}] x) => (float y) {{
            a = Conv <pads = {pads}> (x, w, b)  c = Mul(a, scale)  y = Relu(c)
        }}""",
        w=weights(80, 64, *kernel),
        b=weights(80),
        scale=weights(1, 80, 1, 1, 1),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and "Conv" not in kinds and kinds.count("MatMul") == products
    assert 0 < error < 3e-5


def test_winograd_covers_groups_same_padding_and_three_axes(tmp_path: Path) -> None:
    model = parsed(
        """g (float[1, 192, 6, 12, 10] x) => (float y) {
            a = Conv <auto_pad = "SAME_LOWER", group = 3> (x, w)  y = Conv <auto_pad = "VALID"> (a, v)
        }""",
        w=weights(192, 64, 3, 3, 3),
        v=weights(70, 192, 3, 3, 3, seed=1),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 2 and "Conv" not in kinds and 0 < error < 3e-5


@pytest.mark.parametrize(
    ("kernel", "attributes", "size"),
    [
        ((3, 3, 3), "strides = [2, 1, 1], pads = [1, 1, 1, 1, 1, 1]", (1, 8, 12, 12)),
        ((5, 3, 3), "pads = [2, 1, 1, 2, 1, 1]", (1, 8, 12, 12)),
        ((2, 3, 3), 'auto_pad = "SAME_UPPER"', (1, 8, 12, 12)),
        ((3, 3, 1), "pads = [1, 1, 0, 1, 1, 0]", (1, 8, 12, 12)),
        ((1, 3, 3), "pads = [0, 1, 1, 1, 1, 1]", (1, 8, 12, 12)),  # a slice of zeros more
        ((3, 3, 3), "pads = [2, 2, 2, 2, 2, 2], dilations = [2, 2, 2]", (1, 8, 12, 12)),
        ((3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]", (1, 2, 7, 7)),  # 98 outputs
        ((1, 1, 1), "pads = [0, 0, 0, 0, 0, 0]", (1, 8, 12, 12)),
        ((3, 1, 1), "pads = [1, 0, 0, 1, 0, 0]", (2, 8, 5, 6)),  # of several volumes
        (
            (3, 1, 1),
            "pads = [1, 0, 0, 1, 0, 0]",
            (1, 9, 5, 6),
        ),  # three tiles of slices, where two and a bit would do
    ],
)
def test_winograd_leaves_other_convolutions_of_volumes(
    kernel: tuple[int, int, int], attributes: str, size: tuple[int, ...]
) -> None:
    batch, *places = size
    shape = ", ".join(map(str, (batch, 64, *places)))
    model = parsed(
        f"g (float[{shape}] x) => (float y) {{ y = Conv <{attributes}> (x, w) }}",
        w=weights(64, 64, *kernel),
    )
    assert to_winograd(RewriteGraph(model)) == 0


def test_winograd_leaves_weights_that_are_computed_and_halves() -> None:
    text = "g (float[1, 64, 24, 24] x, float[64, 64, 3, 3] w) => (float y) { y = Conv(x, w) }"
    assert to_winograd(RewriteGraph(parsed(text))) == 0
    text = "g (float16[1, 64, 24, 24] x) => (float16 y) { y = Conv(x, w) }"
    assert to_winograd(RewriteGraph(parsed(text, w=weights(64, 64, 3, 3).astype(np.float16)))) == 0


def test_winograd_keeps_rows_between_convolutions_and_additions(tmp_path: Path) -> None:
    """A residual block, and its result read in its own form by two others."""
    model = parsed(
        """g (float[1, 64, 24, 24] x) => (float[1, 64, 24, 24] y, float[1, 64, 12, 12] z) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)   b = Mul(a, scale)   c = LeakyRelu(b)
            d = Conv <auto_pad = "SAME_UPPER"> (c, v, bias)   e = Add(d, x)   f = Clip(e, zero, six)
            y = Softmax <axis = 1> (f)   z = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)
        }""",
        w=weights(64, 64, 3, 3),
        v=weights(64, 64, 3, 3, seed=1),
        bias=weights(64),
        scale=weights(1, 64, 1, 1),
        zero=np.array(0, np.float32),
        six=np.array(6, np.float32),
    )
    found, kinds, error = converted(model, to_winograd, tmp_path)
    assert found == 2 and error < 2e-5
    # One Transpose in, one out, and those of the weights.
    assert Counter(kinds)["Transpose"] == 4


def test_body_reads_its_values_in_their_own_layout(tmp_path: Path) -> None:
    model = parsed(
        """g (float[1, 64, 24, 24] x) => (float[1, 64, 24, 24] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            y = If(yes) <
                then_branch = t () => (float[1, 64, 24, 24] p) { p = Abs(a) },
                else_branch = e () => (float[1, 64, 24, 24] q) { q = Neg(a) }
            >
        }""",
        w=weights(64, 64, 3, 3),
        yes=np.array(True),
    )
    found, _, error = converted(model, to_winograd, tmp_path)
    assert found == 1 and error < 2e-5

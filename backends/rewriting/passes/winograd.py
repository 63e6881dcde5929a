"""Convolutions by Winograd's algorithm, written as products of matrices, for which every runtime has a fast kernel.

It takes images and volumes, whose kernels have 3 places and more along an axis. Rows of channels are
gathered into tiles; the transforms of tiles, and the products between them, are MatMuls. A runtime
folds the transform of the weights. Slices of a volume are transformed before tiles are gathered and
after, since a volume is smaller than its tiles.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from collage.backends.rewriting.graph import RewriteGraph, attributes, called
from collage.backends.rewriting.layout_pass import LayoutPass
from collage.backends.rewriting.passes.winograd_tiles import (
    LONG,
    TILINGS,
    Matrix,
    TiledAxis,
    TilePlan,
    Tiling,
)

_IMAGE, _VOLUME = 4, 5  # axes
_NINE_AND_MORE = 9  # places along an axis
_SAME = {b"SAME_UPPER", b"SAME_LOWER"}
# By the kernel's places along the axes of a slice, the fewer first, and across slices: the fewest
# channels that a group reads and makes, and the fewest outputs of a channel. Below, the transforms cost
# what the products save (docs/results/winograd.md).
_FEWEST = {
    (1, 1, 3): (64, 128),
    (3, 3, 1): (64, 128),
    (3, 3, 3): (64, 128),
    (5, 5, 1): (48, 169),
    (7, 7, 1): (64, 169),
    (1, 3, 1): (256, 128),
    (1, 5, 1): (64, 128),
    (1, 7, 1): (64, 128),
    (1, _NINE_AND_MORE, 1): (64, 128),
}
# Share of the direct form's multiplications, since tiles reach over the edge
# (docs/results/winograd.md).
_MOST_PRODUCTS = 0.5


def to_winograd(graph: RewriteGraph) -> int:
    """Apply the pass to convolutions with enough channels and outputs; returns how many there were."""
    return sum(_Rows(graph, rank).run() for rank in (_IMAGE, _VOLUME))


class _Rows(LayoutPass):
    """Images or volumes as rows of channels, (N * D * H * W, C): of two axes, since OpenVINO permutes more again."""

    tag = "rows"
    broadcasts = False

    def __init__(self, graph: RewriteGraph, rank: int) -> None:
        super().__init__(graph)
        self.rank = rank

    def entering(self, name: str, other: str) -> list[onnx.NodeProto]:
        batch, channels, *places = self.graph.shapes[name]
        shape = self.graph.integers(f"{other}/shape", (batch * prod(places), channels))
        last = f"{other}/last"
        perm = [0, *range(2, self.rank), 1]
        return [
            helper.make_node("Transpose", [name], [last], name=last, perm=perm),
            helper.make_node("Reshape", [last, shape], [other], name=other),
        ]

    def leaving(self, other: str, name: str) -> list[onnx.NodeProto]:
        batch, channels, *places = self.graph.shapes[name]
        shape = self.graph.integers(f"{other}/back", (batch, *places, channels))
        last = f"{name}/last"
        perm = [0, self.rank - 1, *range(1, self.rank - 1)]
        return [
            helper.make_node("Reshape", [other, shape], [last], name=last),
            helper.make_node("Transpose", [last], [name], name=f"{name}/back", perm=perm),
        ]

    def other_constant(self, name: str) -> str | None:
        shape = self.graph.shapes[name]
        if len(shape) == 0 or (len(shape) == 1 and shape[0] == 1):
            return name
        full = (1,) * (self.rank - len(shape)) + shape
        if any(size != 1 for axis, size in enumerate(full) if axis != 1):
            return None
        return self.graph.copied(name, self.name_of(name), (full[1],))

    def convert(self, node: onnx.NodeProto) -> bool:
        if not self.graph.is_ours(node, "Conv"):
            return False
        shapes = [self.graph.shapes.get(n, ()) for n in (*node.input[:2], node.output[0])]
        if any(len(shape) != self.rank for shape in shapes):
            return False
        before, weights, after = shapes
        begins, given = self._begins(node), attributes(node)
        if begins is None:
            return False
        groups, taps, apart = given.get("group", 1), prod(weights[2:-2]), given.get("dilations", (1, 1))
        channels, outputs = _FEWEST[_kernel(weights[2:])]
        made = prod((after[0], *after[2:]))
        if min(weights[1], after[1] // groups) < channels or made < outputs:
            return False
        down, across = map(_tiled, weights[-2:], after[-2:], begins[1:], apart[-2:])
        tried = product(down, across, TILINGS[taps] if taps > 1 else (None,))
        plans = (TilePlan(d, a, deep, groups, before, after, begins[0]) for d, a, deep in tried)
        plan = min(plans, key=lambda plan: plan.cost)
        if plan.products > _MOST_PRODUCTS * made * prod(weights[2:]):
            return False
        if plan.places == 1 and (before[0], groups) != (1, 1):
            return False
        _Convolution(self, node, plan).write()
        self.found += 1
        return True

    def _begins(self, node: onnx.NodeProto) -> tuple[int, int, int] | None:
        """Slices, rows and columns of zeros before the first; None for a convolution that is not taken."""
        given = attributes(node)
        weights = self.graph.constants.get(node.input[1])
        is_dilated = any(dilation != 1 for dilation in given.get("dilations", ()))
        if (is_dilated and self.rank == _VOLUME) or any(
            stride != 1 for stride in given.get("strides", ())
        ):
            return None
        if weights is None or weights.data_type != onnx.TensorProto.FLOAT:
            return None
        if _kernel(weights.dims[2:]) not in _FEWEST:
            return None
        *deep, height, width = weights.dims[2:]
        if given.get("auto_pad") in _SAME:
            # Both ends get as many. ONNX Runtime knows no such padding of dilations.
            return None if is_dilated else (prod(deep) // 2, height // 2, width // 2)
        ends = given.get("pads", (0,) * 2 * (self.rank - 2))
        pads = list(zip(ends[: self.rank - 2], ends[self.rank - 2 :], strict=True))
        if any(any(pad) for pad, size in zip(pads, weights.dims[2:], strict=True) if size == 1):
            return None
        *front, top, left = (begin for begin, _ in pads)
        return sum(front), top, left


def _tiled(size: int, outputs: int, begin: int, dilation: int) -> list[TiledAxis]:
    """The tilings of an axis along which a kernel reads so many places."""
    tilings = TILINGS.get(size, (LONG,))
    return [TiledAxis(t, size, outputs, begin, dilation if size > 1 else 1) for t in tilings]


def _kernel(sizes: Sequence[int]) -> tuple[int, int, int]:
    """A kernel's places along the axes of a slice, the fewer first, and across slices; long ones are alike."""
    *deep, height, width = sizes
    shorter, longer = sorted((height, width))
    return shorter, min(longer, _NINE_AND_MORE) if longer % 2 else longer, prod(deep)


class _Convolution:
    """The nodes that compute one convolution.

    Args:
        rows: where they are written.
    """

    def __init__(self, rows: _Rows, node: onnx.NodeProto, plan: TilePlan) -> None:
        self._rows, self._graph, self._node, self._plan = rows, rows.graph, node, plan

    def write(self) -> None:
        """Make the convolution's output, in rows."""
        plan, node = self._plan, self._node
        rows = self._rows.enter(node.input[0])
        if plan.deep is not None:
            rows = self._slices(rows, plan.deep)
        data = rows if plan.places == 1 else self._tiles(rows)
        lead = (plan.places * plan.kinds, *((plan.groups,) if plan.groups > 1 else ()))
        factors = self._shaped(data, "factors", *lead, plan.tiles, plan.read), self._kernels(*lead)
        pixels = self._add("MatMul", "products", *factors)
        if plan.places > 1:
            pixels = self._untiled(pixels)
        if plan.deep is not None:
            pixels = self._unsliced(pixels, plan.deep)
        elif plan.groups > 1:
            pixels = self._shaped(pixels, "pixel_rows", -1, plan.after[1])
        other = self._rows.made_as(node.output[0])
        if len(node.input) > 2 and node.input[2]:
            self._rows.make(helper.make_node("Add", [pixels, node.input[2]], [other], name=node.name))
        else:
            self._rows.make(helper.make_node("Identity", [pixels], [other], name=node.name))

    def _slices(self, rows: str, deep: Tiling) -> str:
        plan = self._plan
        rows = self._shaped(rows, "volume", plan.before[0], plan.before[2], -1)
        rows = self._add("MatMul", "slices", self._number("slices_read", plan.slices_read(deep)), rows)
        return self._shaped(rows, "slice_rows", -1, plan.before[1])

    def _tiles(self, rows: str) -> str:
        # Tiles reach over the edge; there they read a row of zeros, the last one.
        plan, graph, channels = self._plan, self._graph, self._plan.before[1]
        zeros = graph.constant(f"collage.zeros/{channels}", np.zeros((1, channels), np.float32))
        rows = self._add("Concat", "edged", rows, zeros, axis=0)
        if plan.groups > 1:
            rows = self._shaped(rows, "rows_of_groups", -1, plan.read)
        which = graph.constant(f"{called(self._node)}/tiles_of", plan.rows_read())
        inside = self._add("Gather", "tiles", rows, which, axis=0)
        inside = self._shaped(inside, "tiles_wide", plan.places, -1)
        return self._add("MatMul", "data", self._transform("data"), inside)

    def _kernels(self, *lead: int) -> str:
        """The transformed weights, [*lead, read, made]."""
        plan, given = self._plan, self._node.input[1]
        shape, axes = list(self._graph.shapes[given]), {-2: plan.down, -1: plan.across}
        for at, axis in axes.items():
            if more := axis.parts * axis.tiling.taps - axis.kernel:
                shape[at] = more
                zeros = self._graph.constant(f"{called(self._node)}/zeros", np.zeros(shape, np.float32))
                given = self._add("Concat", "kernels_filled", given, zeros, axis=len(shape) + at)
        split = (size for axis in axes.values() for size in (axis.parts, axis.tiling.taps))
        found = self._shaped(given, "kernels", plan.groups, plan.made, plan.read, -1, *split)
        found = self._add("Transpose", "kernels_last", found, perm=[5, 7, 3, 0, 2, 4, 6, 1])
        transform = plan.weights()
        found = self._shaped(found, "kernels_wide", transform.shape[1], -1)
        found = self._add("MatMul", "kernels_in", self._number("weights", transform), found)
        return self._shaped(found, "by", *lead, plan.read, plan.parts * plan.made)

    def _untiled(self, products: str) -> str:
        plan = self._plan
        wide = self._shaped(products, "products_wide", plan.places, -1)
        result = self._transform("result")
        rows = self._shaped(self._add("MatMul", "result", result, wide), "result_rows", -1, plan.made)
        parts = [self._of_part(rows, f"pixels/{part}", of) for part, of in enumerate(plan.rows_made())]
        return parts[0] if len(parts) == 1 else self._add("Sum", "pixels", *parts)

    def _of_part(self, rows: str, step: str, of: npt.NDArray[np.int32]) -> str:
        which = self._graph.constant(f"{called(self._node)}/{step}/of", of)
        return self._add("Gather", step, rows, which, axis=0)

    def _unsliced(self, pixels: str, deep: Tiling) -> str:
        plan = self._plan
        pixels = self._shaped(pixels, "pixel_slices", plan.after[0], plan.kinds * plan.slices, -1)
        made = self._number("slices_made", plan.slices_made(deep))
        return self._shaped(self._add("MatMul", "volume_made", made, pixels), "rows", -1, plan.after[1])

    def _add(self, kind: str, step: str, *inputs: str, **given: object) -> str:
        name = f"{called(self._node)}/{step}"
        self._rows.make(helper.make_node(kind, inputs, [name], name=name, **given))
        return name

    def _shaped(self, value: str, step: str, *shape: int) -> str:
        name = f"collage.shape/{'x'.join(map(str, shape))}"
        return self._add("Reshape", step, value, self._graph.integers(name, shape))

    def _number(self, step: str, matrix: Matrix) -> str:
        return self._graph.constant(f"{called(self._node)}/{step}", matrix.astype(np.float32))

    def _transform(self, which: str) -> str:
        """A transform of both axes of a tile at once."""
        down, across = self._plan.down.tiling, self._plan.across.tiling
        both = np.kron(getattr(down, which), getattr(across, which)).astype(np.float32)
        of = "x".join(f"{tiling.made}of{tiling.taps}" for tiling in (down, across))
        return self._graph.constant(f"collage.winograd/{of}/{which}", both)

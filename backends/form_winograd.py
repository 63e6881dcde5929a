"""Convolutions by Winograd's algorithm, written as products of matrices, which every runtime has a fast kernel for.

Of images (3x3 and 5x5) and of volumes (3x3x3, 1x3x3 and 3x1x1). In a 3x3 convolution a tile of 6 by 6 inputs makes 4 by 4 outputs
with 36 multiplications in place of 144, in a 5x5 one 8 by 8 make 4 by 4 with 64 in place of 400. Here rows of channels are
gathered into tiles, and the transforms and the products between them are MatMuls; the transform of the weights is folded when a
runtime compiles. Along the third axis of a volume 6 slices make 4, or 4 make 2, in the same way, before tiles are gathered and
after: a volume is smaller than its tiles. Outputs differ from the direct form's by some 1e-5 of the largest.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import onnx
from onnx import helper

from backends.form_graph import Detour, FormGraph, attributes, called
from backends.winograd_tiles import TILINGS, Matrix, TilePlan, Tiling

_RANKS = (4, 5)  # of images and of volumes
# Down, across and deep.
_KERNELS = ((3, 3, 1), (5, 5, 1), (3, 3, 3), (1, 1, 3))
_SAME = {b"SAME_UPPER", b"SAME_LOWER"}
# By the kernel's places across: the fewest channels that a group reads and makes, and the fewest tiles; with fewer the transforms
# cost what the multiplications save. On a Xeon with AVX-512 OpenVINO took 0.4 to 0.9 of the direct form's time with 64 channels and
# more, and longer with 32, or with 4 or 16 tiles (images of 7 by 7); for 5x5 0.6 to 0.8 with 48 channels and more and 16 tiles
# and more, and 0.9 to 1.2 with 32 channels.
_FEWEST = {1: (64, 32), 3: (64, 32), 5: (48, 16)}
# Of the direct form's multiplications, since tiles reach over the edge: with 0.52 (images of 13 by 13) it took 0.9 to 1.2 of its
# time, with 0.53 (33 by 33, dilations of 6 and more) 1.1 to 1.5, with 0.67 (3x1x1 on 2 or 6 slices) 0.9 to 1.3.
_MOST_PRODUCTS = 0.5


def to_winograd(graph: FormGraph) -> int:
    """Write the convolutions that have enough channels and tiles so; returns how many there were."""
    return sum(_Rows(graph, rank).run() for rank in _RANKS)


class _Rows(Detour):
    """Images or volumes as rows of channels, [N * D * H * W, C]: what a MatMul reads.

    Of two axes, since OpenVINO would permute more once more.
    """

    tag = "rows"
    broadcasts = False

    def __init__(self, graph: FormGraph, rank: int) -> None:
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
        groups, dilation = given.get("group", 1), given.get("dilations", (1,))[-1]
        if begins is None:
            return False
        channels, tiles = _FEWEST[weights[-1]]
        if min(weights[1], after[1] // groups) < channels:
            return False
        across, deep = TILINGS.get(weights[-1], (None,)), TILINGS.get(prod(weights[2:-2]), (None,))
        tried = product(across, deep)
        plans = (TilePlan(*tilings, dilation, groups, before, after, begins) for tilings in tried)
        plan = min((p for p in plans if p.tiles >= tiles), key=lambda p: p.products, default=None)
        if plan is None or plan.products > _MOST_PRODUCTS * prod((*weights[2:], after[0], *after[2:])):
            return False
        if plan.tiling is None and (before[0], groups) != (1, 1):
            return False
        _Convolution(self, node, plan).write()
        self.found += 1
        return True

    def _begins(self, node: onnx.NodeProto) -> tuple[int, int, int] | None:
        """Slices, rows and columns of zeros before the first ones; None for a convolution that is of another kind."""
        given = attributes(node)
        weights = self.graph.constants.get(node.input[1])
        dilations = set(given.get("dilations", (1,)))
        tiled = dilations == {1} or (len(dilations) == 1 and self.rank == 4)
        if not tiled or any(stride != 1 for stride in given.get("strides", ())):
            return None
        if weights is None or weights.data_type != onnx.TensorProto.FLOAT:
            return None
        *deep, height, width = weights.dims[2:]
        taps = prod(deep)
        if (height, width, taps) not in _KERNELS:
            return None
        if given.get("auto_pad") in _SAME:
            # Both ends get as many. ONNX Runtime knows no such padding of dilations.
            return (taps // 2, height // 2, width // 2) if dilations == {1} else None
        ends = given.get("pads", (0,) * 2 * (self.rank - 2))
        pads = list(zip(ends[: self.rank - 2], ends[self.rank - 2 :], strict=True))
        if any(any(pad) for pad, size in zip(pads, weights.dims[2:], strict=True) if size == 1):
            return None
        *front, top, left = (begin for begin, _ in pads)
        return sum(front), top, left


class _Convolution:
    """The nodes that compute one convolution.

    Args:
        rows: where they are written.
        node: the convolution.
        plan: of it.
    """

    def __init__(self, rows: _Rows, node: onnx.NodeProto, plan: TilePlan) -> None:
        self._rows, self._graph, self._node, self._plan = rows, rows.graph, node, plan

    def write(self) -> None:
        """Make the convolution's output, in rows."""
        plan, node = self._plan, self._node
        rows = self._rows.enter(node.input[0])
        if plan.deep is not None:
            rows = self._slices(rows, plan.deep)
        data = rows if plan.tiling is None else self._tiles(rows, plan.tiling)
        lead = (plan.places * plan.kinds, *((plan.groups,) if plan.groups > 1 else ()))
        factors = self._shaped(data, "factors", *lead, plan.tiles, plan.read), self._kernels(*lead)
        pixels = self._add("MatMul", "products", *factors)
        if plan.tiling is not None:
            pixels = self._untiled(pixels, plan.tiling)
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

    def _tiles(self, rows: str, tiling: Tiling) -> str:
        # Tiles reach over the edge; there they read a row of zeros, the last one.
        plan, graph, channels = self._plan, self._graph, self._plan.before[1]
        zeros = graph.constant(f"collage.zeros/{channels}", np.zeros((1, channels), np.float32))
        rows = self._add("Concat", "edged", rows, zeros, axis=0)
        if plan.groups > 1:
            rows = self._shaped(rows, "rows_of_groups", -1, plan.read)
        which = graph.constant(f"{called(self._node)}/tiles_of", plan.rows_read(tiling))
        inside = self._add("Gather", "tiles", rows, which, axis=0)
        inside = self._shaped(inside, "tiles_wide", plan.places, -1)
        return self._add("MatMul", "data", self._transform("data", tiling, tiling.data), inside)

    def _kernels(self, *lead: int) -> str:
        """The transformed weights, [*lead, read, made]."""
        plan, given = self._plan, self._node.input[1]
        down, across = self._graph.shapes[given][-2:]
        found = self._shaped(given, "kernels", plan.groups, plan.made, plan.read, -1, down, across)
        found = self._add("Transpose", "kernels_last", found, perm=[4, 5, 3, 0, 2, 1])
        transform = plan.weights()
        found = self._shaped(found, "kernels_wide", transform.shape[1], -1)
        found = self._add("MatMul", "kernels_in", self._number("weights", transform), found)
        return self._shaped(found, "by", *lead, plan.read, plan.made)

    def _untiled(self, products: str, tiling: Tiling) -> str:
        plan = self._plan
        wide = self._shaped(products, "products_wide", plan.places, -1)
        result = self._transform("result", tiling, tiling.result)
        rows = self._shaped(self._add("MatMul", "result", result, wide), "result_rows", -1, plan.made)
        where = self._graph.constant(f"{called(self._node)}/pixels_of", plan.rows_made(tiling))
        return self._add("Gather", "pixels", rows, where, axis=0)

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

    def _transform(self, name: str, tiling: Tiling, matrix: Matrix) -> str:
        """A transform of both axes of a tile at once."""
        both = np.kron(matrix, matrix).astype(np.float32)
        return self._graph.constant(f"collage.winograd/{tiling.made}x{tiling.taps}/{name}", both)

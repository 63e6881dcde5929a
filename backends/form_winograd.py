"""3x3, 3x3x3 and 3x1x1 convolutions by Winograd's algorithm, written as products of matrices, which every runtime has a fast kernel for.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016): a tile of 6 by 6 inputs makes 4 by 4 outputs with
36 multiplications in place of 144, one of 4 by 4 makes 2 by 2 with 16 in place of 36. Here rows of channels are gathered into
tiles, and the transforms and the 36 or 16 products between them are MatMuls; that of the weights is folded when a runtime
compiles. Along the third axis of a volume 6 slices make 4, or 4 make 2, in the same way, before tiles are gathered and after:
a volume is smaller than its tiles. Outputs differ from the direct form's by some 1e-5 of the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from backends.form_graph import Detour, FormGraph, attributes, called

_Matrix = npt.NDArray[np.float64]
_Shape = tuple[int, ...]
_RANKS = (4, 5)  # of images and of volumes
_KERNEL = 3
# Down, across and deep.
_KERNELS = ((3, 3, 1), (3, 3, 3), (1, 1, 3))
_SAME = {b"SAME_UPPER", b"SAME_LOWER"}
# With fewer channels or tiles the transforms cost what the multiplications save: on a Xeon with AVX-512 OpenVINO took 0.4 to 0.9
# of the direct form's time with 64 channels and more, and longer with 32, or with 4 or 16 tiles (images of 7 by 7).
_FEWEST_CHANNELS, _FEWEST_TILES = 64, 32


@dataclass(frozen=True)
class _Tiling:
    """F(made x made, 3 x 3).

    Args:
        made: outputs of a tile along an axis.
        data, weights, result: the transforms of one axis.
    """

    made: int
    data: _Matrix
    weights: _Matrix
    result: _Matrix

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return self.made + _KERNEL - 1

    def along(self, outputs: int) -> int:
        """Tiles along an axis of so many outputs."""
        return -(-outputs // self.made)


# Interpolation points 0, 1, -1 and infinity, and 2 and -2 for the larger one, which comes first: where there are enough of its
# tiles it is the faster one.
_TILINGS = (
    _Tiling(
        4,
        np.array(
            [
                [4, 0, -5, 0, 1, 0],
                [0, -4, -4, 1, 1, 0],
                [0, 4, -4, -1, 1, 0],
                [0, -2, -1, 2, 1, 0],
                [0, 2, -1, -2, 1, 0],
                [0, 4, 0, -5, 0, 1],
            ]
        ),
        np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24,
        np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]),
    ),
    _Tiling(
        2,
        np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]),
        np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2,
        np.array([[1, 1, 1, 0], [0, 1, -1, -1]]),
    ),
)


@dataclass(frozen=True)
class _Plan:
    """One convolution in tiles of a slice, and slices in tiles; an image has one slice, a volume several.

    Args:
        tiling: of a slice's outputs; None where the kernel reads one pixel of a slice.
        deep: of slices; None where the kernel reads one slice.
        groups: of channels.
        before, after: shapes of what it reads and makes, [N, C, H, W] or [N, C, D, H, W].
        begins: slices, rows and columns of zeros before the first ones.
    """

    tiling: _Tiling | None
    deep: _Tiling | None
    groups: int
    before: _Shape
    after: _Shape
    begins: tuple[int, int, int]

    @property
    def read(self) -> int:
        """Channels that a group reads."""
        return self.before[1] // self.groups

    @property
    def made(self) -> int:
        """Channels that a group makes."""
        return self.after[1] // self.groups

    @property
    def kinds(self) -> int:
        """Kinds of slices, which have products of their own: the places of a tile of slices."""
        return self.deep.size if self.deep else 1

    @property
    def slices(self) -> int:
        """Slices of each kind, in which tiles are gathered."""
        return self.deep.along(prod(self.after[2:-2])) if self.deep else prod(self.after[2:-2])

    @property
    def places(self) -> int:
        """Places of a tile, each of which has products of its own."""
        return self.tiling.size**2 if self.tiling else 1

    @property
    def tiles(self) -> int:
        """Rows of a product: tiles of all slices of one kind of a group."""
        along = self.tiling.along if self.tiling else int
        return self.after[0] * self.slices * prod(map(along, self.after[-2:]))

    def weights(self) -> _Matrix:
        """The transform of a kernel, whose axes are down, across and deep."""
        found: _Matrix = np.ones((1, 1))
        for tiling in (self.tiling, self.tiling, self.deep):
            found = np.asarray(np.kron(found, tiling.weights), np.float64) if tiling else found
        return found

    def slices_read(self, deep: _Tiling) -> _Matrix:
        """The slices, of one kind after the other, from those of the volume: [kinds * slices, D]."""
        given = self.before[2]
        found = np.zeros((self.kinds, self.slices, given))
        for tile, place in np.ndindex(self.slices, deep.size):
            at = tile * deep.made + place - self.begins[0]
            if 0 <= at < given:
                found[:, tile, at] = deep.data[:, place]
        return found.reshape(-1, given)

    def slices_made(self, deep: _Tiling) -> _Matrix:
        """The slices of the output from those: [D, kinds * slices]."""
        found = np.zeros((self.slices, deep.made, self.kinds, self.slices))
        for tile in range(self.slices):
            found[tile, :, :, tile] = deep.result
        return found.reshape(-1, self.kinds * self.slices)[: self.after[2]]

    def rows_read(self, tiling: _Tiling) -> npt.NDArray[np.int32]:
        """Which row each place of each tile reads: [places, kinds * groups * tiles]; those beyond the edge the last, of zeros.

        A row has the channels of one group of one pixel of a slice.
        """
        batch, height, width = self.before[0], *self.before[-2:]
        slices = self.kinds * self.slices
        down, across = map(tiling.along, self.after[-2:])
        y = np.arange(tiling.size)[:, None] + np.arange(down) * tiling.made - self.begins[1]
        x = np.arange(tiling.size)[:, None] + np.arange(across) * tiling.made - self.begins[2]
        # Axes: place down, place across, tile down, tile across.
        y, x = y[:, None, :, None], x[None, :, None, :]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixels = np.where(inside, y * width + x, -1).reshape(self.places, 1, 1, 1, 1, -1)
        kinds, groups, images, of_kind = np.ix_(
            *map(np.arange, (self.kinds, self.groups, batch, self.slices))
        )
        # Axes: place, kind, group, image, slice, tile.
        lead = (images * slices + kinds * self.slices + of_kind)[None, ..., None] * height * width
        rows = np.where(pixels < 0, batch * slices * height * width, lead + pixels)
        rows = rows * self.groups + groups[None, ..., None]
        return np.asarray(rows, np.int32).reshape(self.places, -1)

    def rows_made(self, tiling: _Tiling) -> npt.NDArray[np.int32]:
        """Which row of the results each group of each pixel of each slice is; what tiles make beyond it is left."""
        batch, height, width = self.after[0], *self.after[-2:]
        made = tiling.made
        down, across = map(tiling.along, self.after[-2:])
        image, kind, of_kind, y, x, group = np.meshgrid(
            *map(range, (batch, self.kinds, self.slices, height, width, self.groups)), indexing="ij"
        )
        place = y % made * made + x % made
        of_group = (place * self.kinds + kind) * self.groups + group
        tile = ((image * self.slices + of_kind) * down + y // made) * across + x // made
        return np.asarray(of_group * self.tiles + tile, np.int32).ravel()


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
        begins, groups = self._begins(node), attributes(node).get("group", 1)
        if begins is None or min(weights[1], after[1] // groups) < _FEWEST_CHANNELS:
            return False
        across = (None,) if weights[-1] == 1 else _TILINGS
        deep = (None,) if prod(weights[2:-2]) == 1 else _TILINGS
        plans = [_Plan(*tilings, groups, before, after, begins) for tilings in product(across, deep)]
        plan = next((plan for plan in plans if plan.tiles >= _FEWEST_TILES), None)
        if plan is None or (plan.tiling is None and (before[0], groups) != (1, 1)):
            return False
        _Convolution(self, node, plan).write()
        self.found += 1
        return True

    def _begins(self, node: onnx.NodeProto) -> tuple[int, int, int] | None:
        """Slices, rows and columns of zeros before the first ones; None for a convolution that is of another kind."""
        given = attributes(node)
        weights = self.graph.constants.get(node.input[1])
        ones = all(step == 1 for key in ("strides", "dilations") for step in given.get(key, ()))
        if weights is None or weights.data_type != onnx.TensorProto.FLOAT or not ones:
            return None
        *deep, height, width = weights.dims[2:]
        taps = prod(deep)
        if (height, width, taps) not in _KERNELS:
            return None
        if given.get("auto_pad") in _SAME:
            return taps // 2, height // 2, width // 2  # both ends get one
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

    def __init__(self, rows: _Rows, node: onnx.NodeProto, plan: _Plan) -> None:
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

    def _slices(self, rows: str, deep: _Tiling) -> str:
        plan = self._plan
        rows = self._shaped(rows, "volume", plan.before[0], plan.before[2], -1)
        rows = self._add("MatMul", "slices", self._number("slices_read", plan.slices_read(deep)), rows)
        return self._shaped(rows, "slice_rows", -1, plan.before[1])

    def _tiles(self, rows: str, tiling: _Tiling) -> str:
        # Tiles reach over the edge; there they read a row of zeros, the last one.
        plan, graph, channels = self._plan, self._graph, self._plan.before[1]
        zeros = graph.constant(f"collage.zeros/{channels}", np.zeros((1, channels), np.float32))
        rows = self._add("Concat", "edged", rows, zeros, axis=0)
        if plan.groups > 1:
            rows = self._shaped(rows, "rows_of_groups", -1, plan.read)
        which = graph.constant(f"{called(self._node)}/tiles_of", plan.rows_read(tiling))
        inside = self._add("Gather", "tiles", rows, which, axis=0)
        inside = self._shaped(inside, "tiles_wide", plan.places, -1)
        return self._add("MatMul", "data", self._transform("data", tiling.made, tiling.data), inside)

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

    def _untiled(self, products: str, tiling: _Tiling) -> str:
        plan = self._plan
        wide = self._shaped(products, "products_wide", plan.places, -1)
        result = self._transform("result", tiling.made, tiling.result)
        rows = self._shaped(self._add("MatMul", "result", result, wide), "result_rows", -1, plan.made)
        where = self._graph.constant(f"{called(self._node)}/pixels_of", plan.rows_made(tiling))
        return self._add("Gather", "pixels", rows, where, axis=0)

    def _unsliced(self, pixels: str, deep: _Tiling) -> str:
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

    def _number(self, step: str, matrix: _Matrix) -> str:
        return self._graph.constant(f"{called(self._node)}/{step}", matrix.astype(np.float32))

    def _transform(self, name: str, made: int, matrix: _Matrix) -> str:
        """A transform of both axes of a tile at once."""
        both = np.kron(matrix, matrix).astype(np.float32)
        return self._graph.constant(f"collage.winograd/{made}/{name}", both)

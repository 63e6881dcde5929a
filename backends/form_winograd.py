"""3x3 convolutions by Winograd's algorithm, written as products of matrices, which every runtime has a fast kernel for.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016): a tile of 6 by 6 inputs makes 4 by 4 outputs with
36 multiplications in place of 144, one of 4 by 4 makes 2 by 2 with 16 in place of 36. Here rows of channels are gathered into
tiles, and the transforms and the 36 or 16 products between them are MatMuls; that of the weights is folded when a runtime
compiles. Outputs differ from the direct form's by some 1e-5 of the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from backends.form_graph import Detour, FormGraph, attributes, called

_Matrix = npt.NDArray[np.float64]
_Shape = tuple[int, ...]
_KERNEL = 3
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

    def tiles(self, shape: _Shape) -> tuple[int, int, int]:
        """Images of an output, and the tiles of each, down and across."""
        return shape[0], -(-shape[2] // self.made), -(-shape[3] // self.made)


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
    """One convolution in tiles.

    Args:
        tiling: of its outputs.
        groups: of channels.
        before, after: shapes of what it reads and makes, [N, C, H, W].
        begins: rows and columns of zeros before the image.
    """

    tiling: _Tiling
    groups: int
    before: _Shape
    after: _Shape
    begins: tuple[int, int]

    @property
    def read(self) -> int:
        """Channels that a group reads."""
        return self.before[1] // self.groups

    @property
    def made(self) -> int:
        """Channels that a group makes."""
        return self.after[1] // self.groups

    def rows_read(self) -> npt.NDArray[np.int64]:
        """Which row each place of each tile reads: [places, groups * tiles]; those after the last one are of zeros.

        A row has the channels of one group of one pixel.
        """
        batch, _, height, width = self.before
        size, made = self.tiling.size, self.tiling.made
        _, down, across = self.tiling.tiles(self.after)
        y = np.arange(size)[:, None] + np.arange(down) * made - self.begins[0]
        x = np.arange(size)[:, None] + np.arange(across) * made - self.begins[1]
        y, x = y[:, None, :, None], x[None, :, None, :]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        images = np.arange(batch)[:, None, None] * (height * width)
        pixels = np.where(
            inside[:, :, None], (y * width + x)[:, :, None] + images, batch * height * width
        )
        pixels = pixels.reshape(size**2, 1, -1)
        groups = np.arange(self.groups)[:, None]
        return np.asarray(pixels * self.groups + groups, np.int64).reshape(size**2, -1)

    def rows_made(self) -> npt.NDArray[np.int64]:
        """Which row of the results each group of each pixel is; what tiles make beyond the image is left."""
        batch, _, height, width = self.after
        made = self.tiling.made
        _, down, across = self.tiling.tiles(self.after)
        image, y, x, group = np.meshgrid(
            range(batch), range(height), range(width), range(self.groups), indexing="ij"
        )
        place = y % made * made + x % made
        tile = (image * down + y // made) * across + x // made
        tiles = batch * down * across
        return np.asarray((place * self.groups + group) * tiles + tile, np.int64).ravel()


def to_winograd(graph: FormGraph) -> int:
    """Write the 3x3 convolutions that have enough channels and tiles so; returns how many there were."""
    return _Rows(graph).run()


class _Rows(Detour):
    """Images as rows of channels, [N * H * W, C]: what a MatMul reads.

    Of two axes, since OpenVINO would permute four once more.
    """

    tag = "rows"
    rank = 4
    broadcasts = False

    def entering(self, name: str, other: str) -> list[onnx.NodeProto]:
        batch, channels, height, width = self.graph.shapes[name]
        shape = self.graph.integers(f"{other}/shape", (batch * height * width, channels))
        last = f"{other}/last"
        return [
            helper.make_node("Transpose", [name], [last], name=last, perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", [last, shape], [other], name=other),
        ]

    def leaving(self, other: str, name: str) -> list[onnx.NodeProto]:
        batch, channels, height, width = self.graph.shapes[name]
        shape = self.graph.integers(f"{other}/back", (batch, height, width, channels))
        last = f"{name}/last"
        return [
            helper.make_node("Reshape", [other, shape], [last], name=last),
            helper.make_node("Transpose", [last], [name], name=f"{name}/back", perm=[0, 3, 1, 2]),
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
        begins, tiling = self._begins(node), _tiling(after)
        groups = attributes(node).get("group", 1)
        if begins is None or tiling is None or min(weights[1], after[1] // groups) < _FEWEST_CHANNELS:
            return False
        self._convolve(node, _Plan(tiling, groups, before, after, begins))
        self.found += 1
        return True

    def _convolve(self, node: onnx.NodeProto, plan: _Plan) -> None:
        tiling, groups, read, made = plan.tiling, plan.groups, plan.read, plan.made
        tiles, squared = prod(tiling.tiles(plan.after)), tiling.size**2
        lead = (squared, groups) if groups > 1 else (squared,)

        def add(kind: str, step: str, *inputs: str, **given: object) -> str:
            name = f"{called(node)}/{step}"
            self.make(helper.make_node(kind, inputs, [name], name=name, **given))
            return name

        def shaped(value: str, step: str, *shape: int) -> str:
            name = f"collage.shape/{'x'.join(map(str, shape))}"
            return add("Reshape", step, value, self.graph.integers(name, shape))

        # Tiles reach over the edge; there they read a row of zeros, the last one.
        zeros = self.graph.constant(
            f"collage.zeros/{groups * read}", np.zeros((1, groups * read), np.float32)
        )
        rows = add("Concat", "edged", self.enter(node.input[0]), zeros, axis=0)
        if groups > 1:
            rows = shaped(rows, "rows_of_groups", -1, read)
        which = self.graph.constant(f"{called(node)}/tiles_of", plan.rows_read())
        inside = add("Gather", "tiles", rows, which, axis=0)
        inside = shaped(inside, "tiles_wide", squared, groups * tiles * read)
        data = add("MatMul", "data", self._number(tiling, "data", tiling.data), inside)
        kernels = shaped(node.input[1], "kernels", groups, made, read, _KERNEL, _KERNEL)
        kernels = add("Transpose", "kernels_last", kernels, perm=[3, 4, 0, 2, 1])
        kernels = shaped(kernels, "kernels_wide", _KERNEL**2, groups * read * made)
        kernels = add("MatMul", "kernels_in", self._number(tiling, "weights", tiling.weights), kernels)
        factors = shaped(data, "factors", *lead, tiles, read), shaped(kernels, "by", *lead, read, made)
        products = shaped(
            add("MatMul", "products", *factors), "products_wide", squared, groups * tiles * made
        )
        result = add("MatMul", "result", self._number(tiling, "result", tiling.result), products)
        result = shaped(result, "result_rows", tiling.made**2 * groups * tiles, made)
        where = self.graph.constant(f"{called(node)}/pixels_of", plan.rows_made())
        pixels = add("Gather", "pixels", result, where, axis=0)
        if groups > 1:
            pixels = shaped(pixels, "pixel_rows", -1, groups * made)
        other = self.made_as(node.output[0])
        if len(node.input) > 2 and node.input[2]:
            self.make(helper.make_node("Add", [pixels, node.input[2]], [other], name=node.name))
        else:
            self.make(helper.make_node("Identity", [pixels], [other], name=node.name))

    def _begins(self, node: onnx.NodeProto) -> tuple[int, int] | None:
        """Rows and columns of zeros before the image; None for a convolution that is of another kind."""
        given = attributes(node)
        weights = self.graph.constants.get(node.input[1])
        ones = all(step == 1 for key in ("strides", "dilations") for step in given.get(key, ()))
        if weights is None or weights.data_type != onnx.TensorProto.FLOAT or not ones:
            return None
        if tuple(weights.dims[2:]) != (_KERNEL, _KERNEL):
            return None
        if given.get("auto_pad") in _SAME:
            return 1, 1  # both ends get one row
        top, left = given.get("pads", (0, 0, 0, 0))[:2]
        return top, left

    def _number(self, tiling: _Tiling, name: str, matrix: _Matrix) -> str:
        """A transform of both axes of a tile at once."""
        both = np.kron(matrix, matrix).astype(np.float32)
        return self.graph.constant(f"collage.winograd/{tiling.made}/{name}", both)


def _tiling(shape: _Shape) -> _Tiling | None:
    """The larger tiling of which an output has enough tiles, or None."""
    return next((t for t in _TILINGS if prod(t.tiles(shape)) >= _FEWEST_TILES), None)

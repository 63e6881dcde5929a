"""3x3 convolutions by Winograd's algorithm, written as products of matrices, which every runtime has a fast kernel for.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016): a tile of 6 by 6 inputs makes 4 by 4 outputs with
36 multiplications in place of 144, one of 4 by 4 makes 2 by 2 with 16 in place of 36. Here rows of channels are gathered into
tiles, and the transforms and the 36 or 16 products between them are MatMuls; that of the weights is folded when a runtime
compiles. Outputs differ from the direct form's by some 1e-5 of the largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from backends.form_graph import Detour, FormGraph, attributes, called

_Matrix = npt.NDArray[np.float64]
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


def to_winograd(graph: FormGraph) -> int:
    """Write the 3x3 convolutions that have enough channels and tiles so; returns how many there were."""
    return _Rows(graph).run()


class _Rows(Detour):
    """Images as rows of channels, [N * H * W, C]: what a MatMul reads.

    Of two axes, since OpenVINO would permute four once more.
    """

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
        source, weights = node.input[0], node.input[1]
        shapes = [self.graph.shapes.get(name) for name in (source, weights, node.output[0])]
        if any(shape is None or len(shape) != self.rank for shape in shapes):
            return False
        (batch, read, height, width), _, (_, made, out_height, out_width) = shapes  # type: ignore[misc]
        begins = self._begins(node)
        tiling = _tiling(batch, out_height, out_width)
        if begins is None or tiling is None or min(read, made) < _FEWEST_CHANNELS:
            return False
        down, across = -(-out_height // tiling.made), -(-out_width // tiling.made)
        tiles, products_of = batch * down * across, tiling.size**2
        name = called(node)

        def add(kind: str, step: str, *inputs: str, **given: object) -> str:
            self.make(
                helper.make_node(kind, inputs, [f"{name}/{step}"], name=f"{name}/{step}", **given)
            )
            return f"{name}/{step}"

        def shaped(value: str, step: str, *shape: int) -> str:
            return add(
                "Reshape",
                step,
                value,
                self.graph.integers(f"collage.shape/{'x'.join(map(str, shape))}", shape),
            )

        rows = self.enter(source)
        # Tiles reach over the edge; there they read a row of zeros, the last one.
        zeros = self.graph.constant(f"collage.zeros/{read}", np.zeros((1, read), np.float32))
        rows = add("Concat", "edged", rows, zeros, axis=0)
        which = self.graph.constant(
            f"{name}/tiles_of", _tiles(tiling, (batch, height, width), begins, (down, across))
        )
        inside = add("Gather", "tiles", rows, which, axis=0)
        wide = shaped(inside, "tiles_wide", products_of, tiles * read)
        data = add("MatMul", "data", self._number(tiling, "data", tiling.data), wide)
        factors = shaped(data, "factors", products_of, tiles, read)
        kernels = add("Transpose", "kernels", weights, perm=[2, 3, 1, 0])
        kernels = shaped(kernels, "kernels_wide", _KERNEL**2, read * made)
        kernels = add("MatMul", "kernels_in", self._number(tiling, "weights", tiling.weights), kernels)
        kernels = shaped(kernels, "kernels_of", products_of, read, made)
        products = add("MatMul", "products", factors, kernels)
        products = shaped(products, "products_wide", products_of, tiles * made)
        result = add("MatMul", "result", self._number(tiling, "result", tiling.result), products)
        result = shaped(result, "result_rows", tiling.made**2 * tiles, made)
        where = self.graph.constant(
            f"{name}/pixels_of", _pixels(tiling.made, (batch, out_height, out_width), (down, across))
        )
        called_so = self.made_as(node.output[0])
        if len(node.input) > 2 and node.input[2]:
            pixels = add("Gather", "pixels", result, where, axis=0)
            self.make(helper.make_node("Add", [pixels, node.input[2]], [called_so], name=node.name))
        else:
            self.make(helper.make_node("Gather", [result, where], [called_so], name=node.name, axis=0))
        self.found += 1
        return True

    def _begins(self, node: onnx.NodeProto) -> tuple[int, int] | None:
        """Rows and columns of zeros before the image; None for a convolution that is of another kind."""
        given = attributes(node)
        weights = self.graph.constants.get(node.input[1])
        ones = all(step == 1 for key in ("strides", "dilations") for step in given.get(key, ()))
        if weights is None or weights.data_type != onnx.TensorProto.FLOAT or not ones:
            return None
        if given.get("group", 1) != 1 or tuple(weights.dims[2:]) != (_KERNEL, _KERNEL):
            return None
        if given.get("auto_pad") in _SAME:
            return 1, 1  # both ends get one row
        top, left = given.get("pads", (0, 0, 0, 0))[:2]
        return top, left

    def _number(self, tiling: _Tiling, name: str, matrix: _Matrix) -> str:
        """A transform of both axes of a tile at once."""
        both = np.kron(matrix, matrix).astype(np.float32)
        return self.graph.constant(f"collage.winograd/{tiling.made}/{name}", both)


def _tiling(batch: int, height: int, width: int) -> _Tiling | None:
    """The larger tiling of which an output has enough tiles, or None."""
    for tiling in _TILINGS:
        if batch * -(-height // tiling.made) * -(-width // tiling.made) >= _FEWEST_TILES:
            return tiling
    return None


def _tiles(
    tiling: _Tiling, size: tuple[int, int, int], begins: tuple[int, int], tiles: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Which row of channels each place of each tile reads; the row after the last one is of zeros."""
    batch, height, width = size
    y = np.arange(tiling.size)[:, None] + np.arange(tiles[0]) * tiling.made - begins[0]
    x = np.arange(tiling.size)[:, None] + np.arange(tiles[1]) * tiling.made - begins[1]
    down, across = y[:, None, :, None], x[None, :, None, :]
    inside = (down >= 0) & (down < height) & (across >= 0) & (across < width)
    images = np.arange(batch)[:, None, None] * (height * width)
    rows = (down * width + across)[:, :, None] + images
    found = np.where(inside[:, :, None], rows, batch * height * width)
    return found.reshape(tiling.size**2, -1).astype(np.int64)


def _pixels(made: int, size: tuple[int, int, int], tiles: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Which row of the results each pixel is; what tiles make beyond the image is left."""
    batch, height, width = size
    image, y, x = np.meshgrid(range(batch), range(height), range(width), indexing="ij")
    place = y % made * made + x % made
    tile = (image * tiles[0] + y // made) * tiles[1] + x // made
    return (place * (batch * tiles[0] * tiles[1]) + tile).astype(np.int64).ravel()

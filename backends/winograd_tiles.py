"""Winograd's algorithm in tiles: the transforms of an axis, and which numbers of a convolution stand in which tile.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from numpy.polynomial import polynomial

Matrix = npt.NDArray[np.float64]
_Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tiling:
    """F(made x made, taps x taps).

    Args:
        made: outputs of a tile along an axis.
        taps: of the kernel along it.
        data, weights, result: the transforms of one axis.
    """

    made: int
    taps: int
    data: Matrix
    weights: Matrix
    result: Matrix

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return self.made + self.taps - 1

    def along(self, outputs: int) -> int:
        """Tiles along an axis of so many outputs."""
        return -(-outputs // self.made)


def _tiling(taps: int, points: Sequence[float]) -> Tiling:
    """The algorithm that interpolates at these points and infinity, as Cook and Toom multiply polynomials."""
    made = len(points) + 2 - taps
    others = [[p for p in points if p != point] for point in points]
    data = [*(polynomial.polyfromroots(of) for of in others), polynomial.polyfromroots(points)]
    scales = [prod(point - p for p in of) for point, of in zip(points, others, strict=True)]
    weights = [*np.vander(points, taps, increasing=True) / np.array(scales)[:, None], np.eye(taps)[-1]]
    result = [*np.vander(points, made, increasing=True), np.eye(made)[-1]]
    size = len(points) + 1
    rows = np.array([np.pad(row, (0, size - len(row))) for row in data])
    return Tiling(made, taps, rows, np.array(weights), np.array(result, np.float64).T)


# By a kernel's taps along an axis. On OpenVINO and a Xeon tiles that make 6 outputs of 3 taps had 0.66 to 1.07 of the speed of those
# that make 4, and those that make 2 of 5 taps 0.66 to 1.02.
TILINGS = {
    3: (_tiling(3, (0, 1, -1, 2, -2)), _tiling(3, (0, 1, -1))),
    5: (_tiling(5, (0, 1, -1, 2, -2, 0.5, -0.5)),),
}


@dataclass(frozen=True)
class TilePlan:
    """One convolution in tiles of a slice, and slices in tiles; an image has one slice, a volume several.

    Args:
        tiling: of a slice's outputs; None where the kernel reads one pixel of a slice.
        deep: of slices; None where the kernel reads one slice.
        groups: of channels.
        before, after: shapes of what it reads and makes, [N, C, H, W] or [N, C, D, H, W].
        begins: slices, rows and columns of zeros before the first ones.
        dilation: rows or columns from one that the kernel reads to the next. Those of one *phase* are that far apart, and make tiles
            of their own.
    """

    tiling: Tiling | None
    deep: Tiling | None
    dilation: int
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
        along = map(self.tiles_along, self.after[-2:]) if self.tiling else self.after[-2:]
        return self.after[0] * self.slices * prod(along)

    @property
    def products(self) -> int:
        """Multiplications of a channel that is read by one that is made."""
        return self.places * self.kinds * self.tiles

    def tiles_along(self, outputs: int) -> int:
        """Tiles along an axis of so many outputs, one phase after the other."""
        return self.dilation * self._of_a_phase(outputs)

    def _of_a_phase(self, outputs: int) -> int:
        return self.tiling.along(-(-outputs // self.dilation)) if self.tiling else outputs

    def weights(self) -> Matrix:
        """The transform of a kernel, whose axes are down, across and deep."""
        found: Matrix = np.ones((1, 1))
        for tiling in (self.tiling, self.tiling, self.deep):
            found = np.asarray(np.kron(found, tiling.weights), np.float64) if tiling else found
        return found

    def slices_read(self, deep: Tiling) -> Matrix:
        """The slices, of one kind after the other, from those of the volume: [kinds * slices, D]."""
        given = self.before[2]
        found = np.zeros((self.kinds, self.slices, given))
        for tile, place in np.ndindex(self.slices, deep.size):
            at = tile * deep.made + place - self.begins[0]
            if 0 <= at < given:
                found[:, tile, at] = deep.data[:, place]
        return found.reshape(-1, given)

    def slices_made(self, deep: Tiling) -> Matrix:
        """The slices of the output from those: [D, kinds * slices]."""
        found = np.zeros((self.slices, deep.made, self.kinds, self.slices))
        for tile in range(self.slices):
            found[tile, :, :, tile] = deep.result
        return found.reshape(-1, self.kinds * self.slices)[: self.after[2]]

    def rows_read(self, tiling: Tiling) -> npt.NDArray[np.int32]:
        """Which row each place of each tile reads: [places, kinds * groups * tiles]; those beyond the edge the last, of zeros.

        A row has the channels of one group of one pixel of a slice.
        """
        batch, height, width = self.before[0], *self.before[-2:]
        slices = self.kinds * self.slices
        y, x = (
            self._read_along(tiling, outputs, begin)
            for outputs, begin in zip(self.after[-2:], self.begins[1:], strict=True)
        )
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

    def _read_along(self, tiling: Tiling, outputs: int, begin: int) -> npt.NDArray[np.int64]:
        """What each place of each tile reads along an axis, from `begin` before the first one on: [places, tiles]."""
        of_a_phase = self._of_a_phase(outputs)
        tile = np.arange(self.tiles_along(outputs))
        first = tile % of_a_phase * tiling.made
        return tile // of_a_phase + (first + np.arange(tiling.size)[:, None]) * self.dilation - begin

    def rows_made(self, tiling: Tiling) -> npt.NDArray[np.int32]:
        """Which row of the results each group of each pixel of each slice is; what tiles make beyond it is left."""
        batch, height, width = self.after[0], *self.after[-2:]
        made, dilation = tiling.made, self.dilation
        down, across = map(self.tiles_along, self.after[-2:])
        image, kind, of_kind, y, x, group = np.meshgrid(
            *map(range, (batch, self.kinds, self.slices, height, width, self.groups)), indexing="ij"
        )
        place = y // dilation % made * made + x // dilation % made
        of_group = (place * self.kinds + kind) * self.groups + group
        row = y % dilation * self._of_a_phase(height) + y // dilation // made
        column = x % dilation * self._of_a_phase(width) + x // dilation // made
        tile = ((image * self.slices + of_kind) * down + row) * across + column
        return np.asarray(of_group * self.tiles + tile, np.int32).ravel()

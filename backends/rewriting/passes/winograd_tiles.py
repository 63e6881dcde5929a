"""Winograd's algorithm in tiles: the transforms of an axis, and which numbers of a convolution stand in which tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from numpy.polynomial import polynomial

Matrix = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]
_Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tiling:
    """F(made x made, taps x taps).

    Args:
        data, weights, result: the transforms of one axis.
    """

    made: int  # outputs of a tile along an axis
    taps: int  # of the kernel along it
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


# By a kernel's taps along an axis; tile sizes and points are chosen by speed and rounding
# (docs/results/winograd.md).
TILINGS = {
    1: (Tiling(1, 1, np.eye(1), np.eye(1), np.eye(1)),),
    3: (_tiling(3, (0, 1, -1, 2, -2)), _tiling(3, (0, 1, -1))),
    5: (_tiling(5, (0, 1, -1, 2, -2, 0.5, -0.5)),),
    7: (_tiling(7, (0, 1, -1, 2, -2, 0.5, -0.5, 4 / 3, -0.75)),),
}
# For kernels of more taps, in parts.
LONG = _tiling(6, (0, 1, -1, 2, -2, 0.5, -0.5, 4 / 3, -0.75, 0.25))

# Reading the weights of a place takes as long as the products of so many tiles
# (docs/results/winograd.md).
_WEIGHTS = 16


@dataclass(frozen=True)
class TiledAxis:
    """Rows or columns of a slice in tiles.

    A kernel of more taps than the tiling is taken in *parts*, each of which reads one tile further than
    the one before: a tile then makes as many outputs as it has taps.
    """

    tiling: Tiling  # of the outputs
    kernel: int  # its places along the axis
    outputs: int  # along it
    begin: int  # zeros before the first input
    # of the kernel; inputs of one *phase* are that far apart, and make tiles of their own
    dilation: int

    @property
    def parts(self) -> int:
        """Of the kernel."""
        return -(-self.kernel // self.tiling.taps)

    @property
    def tiles(self) -> int:
        """Tiles along the axis, one phase after the other."""
        return self.dilation * self._of_a_phase

    @property
    def _of_a_phase(self) -> int:
        return self.tiling.along(-(-self.outputs // self.dilation)) + self.parts - 1

    def read(self) -> _Places:
        """What each place of each tile reads: [places, tiles]."""
        tile = np.arange(self.tiles)
        first = tile % self._of_a_phase * self.tiling.made
        places = (first + np.arange(self.tiling.size)[:, None]) * self.dilation
        return tile // self._of_a_phase + places - self.begin

    def tile_of(self, outputs: _Places) -> _Places:
        """The first tile that makes each of these outputs: that of the kernel's first part."""
        phase, within = outputs % self.dilation, outputs // self.dilation
        return phase * self._of_a_phase + within // self.tiling.made

    def place_of(self, outputs: _Places) -> _Places:
        """Which of a tile's outputs each of these is."""
        return outputs // self.dilation % self.tiling.made


@dataclass(frozen=True)
class TilePlan:
    """One convolution in tiles of a slice, and slices in tiles; an image has one slice, a volume several.

    Args:
        down, across: the axes of a slice.
        before, after: shapes of what it reads and makes, [N, C, H, W] or [N, C, D, H, W].
    """

    down: TiledAxis
    across: TiledAxis
    deep: Tiling | None  # of slices; None where the kernel reads one slice
    groups: int  # of channels
    before: _Shape
    after: _Shape
    begin: int  # slices of zeros before the first one

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
        return self.down.tiling.size * self.across.tiling.size

    @property
    def tiles(self) -> int:
        """Rows of a product: tiles of all slices of one kind of a group."""
        return self.after[0] * self.slices * self.down.tiles * self.across.tiles

    @property
    def parts(self) -> int:
        """Parts of the kernel, each of which has products of its own."""
        return self.down.parts * self.across.parts

    @property
    def products(self) -> int:
        """Multiplications of a channel that is read by one that is made."""
        return self.places * self.kinds * self.tiles * self.parts

    @property
    def cost(self) -> int:
        """To compare it with other plans of the same convolution: products, and reading the weights of each place."""
        return self.places * self.kinds * self.parts * (self.tiles + _WEIGHTS)

    def weights(self) -> Matrix:
        """The transform of a part of the kernel, whose axes are down, across and deep."""
        found: Matrix = np.ones((1, 1))
        for tiling in (self.down.tiling, self.across.tiling, self.deep):
            found = np.asarray(np.kron(found, tiling.weights), np.float64) if tiling else found
        return found

    def slices_read(self, deep: Tiling) -> Matrix:
        """The slices, of one kind after the other, from those of the volume: [kinds * slices, D]."""
        given = self.before[2]
        found = np.zeros((self.kinds, self.slices, given))
        for tile, place in np.ndindex(self.slices, deep.size):
            at = tile * deep.made + place - self.begin
            if 0 <= at < given:
                found[:, tile, at] = deep.data[:, place]
        return found.reshape(-1, given)

    def slices_made(self, deep: Tiling) -> Matrix:
        """The slices of the output from those: [D, kinds * slices]."""
        found = np.zeros((self.slices, deep.made, self.kinds, self.slices))
        for tile in range(self.slices):
            found[tile, :, :, tile] = deep.result
        return found.reshape(-1, self.kinds * self.slices)[: self.after[2]]

    def rows_read(self) -> npt.NDArray[np.int32]:
        """Which row each place of each tile reads: [places, kinds * groups * tiles]; those beyond the edge the last, of zeros.

        A row has the channels of one group of one pixel of a slice.
        """
        batch, height, width = self.before[0], *self.before[-2:]
        slices = self.kinds * self.slices
        y, x = self.down.read(), self.across.read()
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

    def rows_made(self) -> list[npt.NDArray[np.int32]]:
        """By part, which row of the results each group of each pixel of each slice is; what tiles make beyond it is left."""
        down, across = self.down, self.across
        image, kind, of_kind, y, x, group = np.meshgrid(
            *map(range, (self.after[0], self.kinds, self.slices, *self.after[-2:], self.groups)),
            indexing="ij",
        )
        place = down.place_of(y) * across.tiling.made + across.place_of(x)
        of_group = (place * self.kinds + kind) * self.groups + group
        found = []
        for part, (below, beside) in enumerate(np.ndindex(down.parts, across.parts)):
            row = (image * self.slices + of_kind) * down.tiles + down.tile_of(y) + below
            tile = row * across.tiles + across.tile_of(x) + beside
            rows = (of_group * self.tiles + tile) * self.parts + part
            found.append(np.asarray(rows, np.int32).ravel())
        return found

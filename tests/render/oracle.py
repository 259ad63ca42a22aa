"""An oracle for pictures, from the definition: what a crisp z-buffer sees, averaged numerically over the noise.

NumPy alone, and nothing of the package: its own camera, z-buffer and densities. A pixel's colour is the integral of what
is seen at q + e over the density of e, by the midpoint rule on `samples` squared points per pixel. Their lattice is turned,
so that edges along rows and columns are met as well as others. Only what a face covers is summed, so nothing is cut off at
the picture's edge.

>>> sheet = crisp(np.array([[0.0, 0.0], [0.0, 8.0], [8.0, 8.0], [8.0, 0.0]]), np.ones(4), np.array([[0, 1, 2], [0, 2, 3]]))
>>> blurred(sheet, np.array([[4.0, 4.0], [0.0, 4.0]]), student_t(8, 0.5)).round(2)
array([1. , 0.5])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Density = Callable[[np.ndarray], np.ndarray]
TURN = np.array([[math.cos(0.6), math.sin(0.6)], [-math.sin(0.6), math.cos(0.6)]])


def student_t(df: float, scale: float) -> Density:
    """Density per area of bivariate Student-t noise by the squared distance."""
    return lambda square: (1 + square / (df * scale**2)) ** (-df / 2 - 1) / (2 * math.pi * scale**2)


def gaussian(scale: float) -> Density:
    """Density per area of normal noise by the squared distance."""
    return lambda square: np.exp(-square / (2 * scale**2)) / (2 * math.pi * scale**2)


def look_at(
    vertices: np.ndarray,
    eye: tuple[float, ...],
    size: tuple[int, int],
    *,
    fov: float | None = 60.0,
    height: float = 2.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (V, 2) in pixels, y down, and depths (V,), as seen from `eye` towards the origin with y up.

    `fov` is the full vertical angle in degrees; `None` is a camera without perspective, whose picture is `height` high.
    """
    back = np.asarray(eye) / np.linalg.norm(eye)
    right = np.cross([0.0, 1.0, 0.0], back)
    right /= np.linalg.norm(right)
    x, y, z = ((vertices - np.asarray(eye)) @ axis for axis in (right, np.cross(back, right), back))
    half = height / 2 if fov is None else -z * math.tan(math.radians(fov) / 2)
    return np.stack([size[1] / 2 + size[0] / 2 * x / half, size[0] / 2 - size[0] / 2 * y / half], -1), -z


class Crisp(NamedTuple):
    """What is seen at the samples that a face covers: their positions, the nearest face, its corners' weights, depth."""

    positions: np.ndarray
    face: np.ndarray
    weights: np.ndarray
    depth: np.ndarray
    area: float

    def attributes(self, corners: np.ndarray) -> np.ndarray:
        """Attributes (F, 3, C) by corner as (N, C) at the samples."""
        return np.einsum("ni,nic->nc", self.weights, corners[self.face])


def crisp(
    screen: np.ndarray,
    depth: np.ndarray,
    faces: np.ndarray,
    *,
    samples: int = 24,
    perspective: bool = True,
    two_sided: bool = True,
) -> Crisp:
    """The z-buffer of faces in front of the camera, over all the plane that they cover."""
    screen = screen @ TURN
    low = np.floor(screen.min(0) * samples).astype(int)
    columns, rows = np.ceil(screen.max(0) * samples).astype(int) - low
    nearest = np.full((rows, columns), np.inf)
    index, weights = np.full((rows, columns), -1), np.zeros((rows, columns, 3))
    for f, face in enumerate(faces):
        corners = screen[face] * samples - low - 0.5
        sides = np.roll(corners, -2, 0) - np.roll(corners, -1, 0)
        area = sides[0, 1] * sides[1, 0] - sides[0, 0] * sides[1, 1]
        # Counter-clockwise as seen, y down, is the front
        if area == 0 or (area < 0 and not two_sided):
            continue
        first = np.maximum(np.ceil(corners.min(0)).astype(int), 0)
        last = np.minimum(np.floor(corners.max(0)).astype(int), [columns - 1, rows - 1])
        window = np.s_[first[1] : last[1] + 1, first[0] : last[0] + 1]
        x, y = np.meshgrid(np.arange(first[0], last[0] + 1), np.arange(first[1], last[1] + 1))
        # Each corner's share is the triangle that the opposite side makes with the sample
        share = np.stack(
            [
                ((x - corners[(i + 1) % 3, 0]) * s[1] - (y - corners[(i + 1) % 3, 1]) * s[0]) / area
                for i, s in enumerate(sides)
            ],
            -1,
        )
        inside = share.min(-1) >= 0
        if perspective:
            share = share / depth[face]
            share = share / np.where(inside, share.sum(-1), 1.0)[..., None]
        z = share @ depth[face]
        seen = inside & (z < nearest[window])
        nearest[window][seen], index[window][seen], weights[window][seen] = z[seen], f, share[seen]
    y, x = np.nonzero(index >= 0)
    positions = (np.stack([x, y], -1) + low + 0.5) / samples @ TURN.T
    return Crisp(positions, index[y, x], weights[y, x], nearest[y, x], 1 / samples**2)


def blurred(seen: Crisp, pixels: np.ndarray, density: Density, values: np.ndarray | None = None) -> np.ndarray:
    """Values (N, C) at the samples averaged over the noise at pixels (P, 2): (P, C); without values the silhouette (P,)."""
    columns = np.ones((len(seen.positions), 1)) if values is None else values
    found = np.stack([seen.area * density(((seen.positions - q) ** 2).sum(-1)) @ columns for q in pixels])
    return found[:, 0] if values is None else found


def centres(size: tuple[int, int]) -> np.ndarray:
    """The pixels' centres (H W, 2), row by row."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    return np.stack([x, y], -1).reshape(-1, 2)

"""What the renderer's formulas share: their numbers, directions of vectors with derivatives that stay finite where there is
no direction, and edges of meshes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.core.cache import constant

#: Twice the screen area (square pixels) over which a face turns from back to front, and below which interpolation
#: inside it gives way to its centroid.
FLIP_AREA = 1e-4
#: Coverage below which the mean position inside a face gives way to its centroid: rounding would throw it out of the face.
FAINT = 1e-5
#: Coverage below which the spread of positions inside a face fades: a difference of moments, in which rounding counts more.
THIN = 3e-3
#: A face seen from the front has no horizon: its slope in depth is taken to be at least 1 / 100000 of its size (as a square).
FLAT = 1e-10
#: Back faces are taken to lie as much further as depth changes over this many scales of the noise.
BACK = 2.0
#: Silhouette below which the depth of what is seen fades to 0.
FADE = 1e-4
#: How many steps of exp beyond all depths the nearest unit of coverage may end, and steps that find where.
FURTHEST, SOLVER_STEPS = 60.0, 30
#: Guards the direction of an edge of zero length (square pixels).
EDGE_GUARD = 1e-12
#: Screen positions are kept within this many pixels, so that their fourth powers stay finite in float32.
FAR_PIXELS = 1e7
#: A wide noise leaves nothing fine in a picture, so kernels evaluate it at samples, this many to the noise's scale, and
#: interpolate between them (fewer degrees of freedom reach higher frequencies: see `RasterSettings.spacing`).
SAMPLES_PER_SCALE = 2.25
#: Samples that a pixel is interpolated from, each way, and those beyond the picture's edge on either side.
TAPS, MARGIN = 10, 5
#: Samples closer than this (in pixels), or more than this share of the pixels, are not worth interpolating between.
LEAST_SPACING, MOST_SAMPLES = 1.25, 0.75
#: Points of the world beyond this are taken to lie there, so that products of finite numbers stay finite.
FAR_POINTS = 1e15
#: What a picture may leave out unless told otherwise: a fortieth of an 8-bit picture's step.
EPSILON = 1e-4
#: How much more than that gradients may leave out: see `RasterSettings.near_reach`.
SLOPES_EPSILON = 4.0
#: What a mesh without colours looks like.
GREY = 0.8
#: Vectors about 1 long that are shorter than this have no direction to speak of.
GUARD = 1e-4
#: A face whose area is this share of its edges' squares has a normal half a unit long; flatter ones fade to 0.
FLATNESS = 1e-5
#: Squares of edges below this are taken to be it, so that no quotient leaves float32.
LEAST_SQUARE = 1e-20
#: What the length of an area over its size is guarded by.
SMALL = 1e-6


def normalise(v: Tensor, guard: float = GUARD) -> Tensor:
    """v / sqrt(|v|^2 + guard^2): C-infinity, 0 at 0, with slopes of at most 1 / guard.

    >>> v = torch.zeros(3, requires_grad=True)
    >>> normalise(v).sum().backward()
    >>> bool(torch.isfinite(v.grad).all())
    True
    """
    return v * torch.rsqrt((v * v).sum(-1, keepdim=True) + guard * guard)


def normalise_area(area: Tensor, square: Tensor) -> Tensor:
    """area / sqrt(|area|^2 + (FLATNESS square)^2), for area vectors (..., 3) of edges with squared lengths (..., 1).

    The same for meshes of any size: 0 where faces have no area, exact to 1e-6 from an aspect of 1 : 100 on.
    """
    # Both are divided by their size first, or squares of small faces underflow. The quotient does not depend on that size,
    # so it needs no derivative
    with torch.no_grad():
        size = torch.maximum(torch.linalg.vector_norm(area, math.inf, -1, keepdim=True), square)
        size = size.clamp_min(LEAST_SQUARE)
    area, square = area / size, FLATNESS * (square / size)
    return area * torch.rsqrt((area * area).sum(-1, keepdim=True) + square * square + SMALL * SMALL)


def step_between(x: Tensor, steep: Callable[[Tensor], Tensor]) -> Tensor:
    """logistic(steep(x)) in (0, 1), at whose ends `steep` is infinite; 0 before and 1 behind it."""
    inside = (x > 0) & (x < 1)
    between = torch.sigmoid(steep(torch.where(inside, x, 0.5)).clamp(-80.0, 80.0))
    return torch.where(inside, between, (x >= 1).to(x.dtype))


def face_areas(points: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the area vectors (*B, F, 3) of faces, and the squared lengths (*B, F, 1) of two edges."""
    a, b, c = points[..., faces.long(), :].unbind(-2)
    first, second = b - a, c - a
    return torch.linalg.cross(first, second), (first * first + second * second).sum(-1, keepdim=True)


def area_sums(points: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of those over the faces at each vertex: (*B, V, 3) and (*B, V, 1)."""
    # Side by side: one sum over the corners serves both
    parts = torch.cat(face_areas(points, faces), -1)[..., None, :].expand(*points.shape[:-2], *faces.shape, 4)
    parts, corners, summed = parts.flatten(-3, -2), faces.flatten(), parts.new_zeros(*points.shape[:-1], 4)
    if points.is_cuda:
        # `index_add` adds in any order there; this sorts first, and gives the same bits in every run
        summed = (
            summed.movedim(-2, 0).index_put((corners.long(),), parts.movedim(-2, 0), accumulate=True).movedim(0, -2)
        )
    else:
        summed = summed.index_add(-2, corners, parts)
    return summed[..., :3], summed[..., 3:]


def pixel_centres(height: int, width: int, like: Tensor) -> Tensor:
    """x and y of the centres (height, width, 2) of an image's pixels."""
    y, x = torch.meshgrid(*[torch.arange(n, device=like.device) for n in (height, width)], indexing="ij")
    return torch.stack([x, y], -1).to(like.dtype) + 0.5


def tensor_like(value: Any, like: Tensor) -> Tensor:
    """A tensor, moved and cast to be like `like`, or numbers as a constant that is not to be changed in place."""
    return value.to(like) if isinstance(value, Tensor) else constant(value, like.dtype, like.device)


def edges_of(faces: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each edge once, as a pair of vertices (E, 2); which of them the sides (0, 1), (1, 2) and (2, 0) of all faces are, (3 F,);
    and how many faces each has."""
    ends = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).long().sort(-1).values
    # One number per edge: rows take ten times as long to sort
    keys, index, counts = (ends[:, 0] << 32 | ends[:, 1]).unique(return_inverse=True, return_counts=True)
    return torch.stack([keys >> 32, keys & 0xFFFFFFFF], -1).to(faces.dtype), index, counts


def split_edges(vertices: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Each face cut into four at the middles of its edges, in place: the surface stays what it was."""
    edges, index, _ = edges_of(faces)
    middles = vertices[..., edges, :].mean(-2)
    m01, m12, m20 = (index + vertices.shape[-2]).reshape(3, -1)
    a, b, c = faces.unbind(-1)
    parts = [(a, m01, m20), (m01, b, m12), (m20, m12, c), (m01, m12, m20)]
    return torch.cat([vertices, middles], -2), torch.cat([torch.stack(p, -1) for p in parts])

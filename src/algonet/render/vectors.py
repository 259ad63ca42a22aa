"""Directions of vectors, with derivatives that stay finite where there is no direction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Vectors about 1 long that are shorter than this have no direction to speak of.
GUARD = 1e-4
#: A face whose area is this share of its edges' squares has a normal half a unit long; flatter ones fade to 0.
FLATNESS = 1e-5
#: Squares of edges below this are taken to be it, so that no quotient leaves float32.
LEAST_SQUARE = 1e-20


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
    return area * torch.rsqrt((area * area).sum(-1, keepdim=True) + square * square + 1e-12)

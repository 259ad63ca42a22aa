"""The maps of a system: how much each shrinks, bounding that, and how often each should be chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import parameters_of
from .reference import join_parameters, split_parameters


def contraction(parameters: Tensor, bound: float = 0.97) -> Tensor:
    """The same maps with their linear parts scaled so that each shrinks distances: spectral norm below `bound`.

    A norm s becomes s / (1 + (s / bound)^32)^(1/32): smooth, below `bound` whatever s is, and s itself to within 1 %
    up to 0.9 bound. Parameters (..., n, 6) in the residual form; offsets stay. Infinitely often differentiable.

    >>> contraction(torch.tensor([[0.0, 9.0, 0.0, 0.0, 0.0, -0.5]]), bound=0.9)
    tensor([[ 0.0000, -0.1000,  0.0000,  0.0000,  0.0000, -0.9550]])
    """
    parameters = parameters_of("contraction", parameters)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 < bound <= 1:
        raise ValueError(f"contraction: `bound` must lie in (0, 1], got {bound!r}.")
    return capped(parameters, torch.full((), float(bound), dtype=parameters.dtype, device=parameters.device))


def capped(parameters: Tensor, bound: Tensor) -> Tensor:
    """`contraction` with one bound per map: `bound` broadcasts to (..., n)."""
    offset, linear = split_parameters(parameters)
    norm = map_norms(parameters)
    # the 32nd power of the smaller of s/bound and its inverse cannot overflow
    large = norm > bound
    ratio = torch.where(large, bound / torch.where(large, norm, 1.0), torch.where(large, 0.0, norm / bound))
    root = torch.exp(torch.log1p(ratio**32) / -32)
    return join_parameters(offset, linear * (root * torch.where(large, ratio, 1.0))[..., None, None])


def map_norms(parameters: Tensor) -> Tensor:
    """Spectral norm of each map's linear part, (..., n); smooth."""
    (a, b), (c, d) = (row.unbind(-1) for row in split_parameters(parameters)[1].unbind(-2))
    # a 2x2 matrix is a rotation times a scale plus a reflection times a scale: the norm is the sum of both scales
    turn = ((a + d) ** 2 + (c - b) ** 2) / 4
    flip = ((a - d) ** 2 + (c + b) ** 2) / 4
    return torch.sqrt(turn + 1e-12) + torch.sqrt(flip + 1e-12)


def area_weights(parameters: Tensor, floor: float = 0.01) -> Tensor:
    """Selection weights (..., n) in proportion to what each map does to areas, |det|, each at least `floor` of all.

    Points then lie about evenly over a fractal whose parts do not overlap. Sums to 1; differentiable.
    """
    _, linear = split_parameters(parameters)
    area = torch.sqrt(determinant(linear) ** 2 + 1e-12)
    share = area / area.sum(-1, keepdim=True)
    return (share + floor) / (1 + floor * share.shape[-1])


def determinant(linear: Tensor) -> Tensor:
    """Of 2 x 2 matrices, written out: `torch.linalg.det` starts threads, which a forked child lacks."""
    (a, b), (c, d) = (row.unbind(-1) for row in linear.unbind(-2))
    return a * d - b * c

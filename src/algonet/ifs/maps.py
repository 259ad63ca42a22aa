"""The maps of a system: how much each shrinks, bounding that, how often each should be chosen; and the choices, which are drawn
in advance, so that a picture is a smooth function of the maps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.core.memory import check_memory

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


def draw_choices(weights: Tensor, chains: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Choices (*batch, chains, steps) of functions with probabilities in proportion to `weights` (*batch, n).

    Stratified: at each step the chains share out the functions as evenly as the weights allow, in random order; the
    picture is less noisy than with independent choices, and each chain by itself is an ordinary one.

    >>> draw_choices(torch.tensor([0.5, 0.25, 0.25]), 4, 2).sort(0).values[:, 0]
    tensor([0, 0, 1, 2])
    """
    # Random numbers, their order, the ladder and the choices
    device = _check_draw("draw_choices", weights, chains, steps, 28 * chains * steps, generator)
    weights = weights.detach().to(device, torch.float64)
    batch = weights.shape[:-1]
    order = torch.rand(*batch, steps, chains, generator=generator, device=device).argsort(-1)
    shift = torch.rand(*batch, steps, 1, generator=generator, dtype=torch.float64, device=device)
    ladder = (order + shift) / chains
    bounds = (weights.cumsum(-1) / weights.sum(-1, keepdim=True))[..., :-1].contiguous()
    return torch.searchsorted(bounds, ladder.flatten(-2), right=True).reshape(ladder.shape).mT.contiguous()


def draw_addresses(weights: Tensor, points: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Choices (*batch, points, steps) whose last points fill the attractor evenly: one chain per point.

    Chain k decodes a number u_k, one from each of `points` equal intervals of [0, 1), into choices, the last step
    first. So every part of the fractal that is reached by some sequence of maps gets its share of the points to within
    one: the picture has a fraction of the noise of independent choices. Use it with `burn_in=steps - 1`.

    >>> draw_addresses(torch.tensor([0.5, 0.25, 0.25]), 4, 3)[:, -1]
    tensor([0, 0, 1, 2])
    """
    # The numbers that are decoded in double precision, and 64-bit choices
    device = _check_draw("draw_addresses", weights, points, steps, points * (24 + 8 * steps), generator)
    shares = weights.detach().double()
    batch, shares = shares.shape[:-1], shares.reshape(-1, shares.shape[-1])
    bounds = (shares / shares.sum(-1, keepdim=True)).cumsum(-1)
    bounds = torch.cat([torch.zeros_like(bounds[:, :1]), bounds[:, :-1], torch.ones_like(bounds[:, :1])], dim=-1)
    jitter = torch.rand(len(shares), points, generator=generator, dtype=torch.float64, device=device).to(shares.device)
    u = (torch.arange(points, device=shares.device) + jitter) / points
    digits = []
    for _ in range(steps):
        digit = torch.searchsorted(bounds[:, 1:-1].contiguous(), u, right=True)
        low = bounds.gather(1, digit)
        u = ((u - low) / (bounds.gather(1, digit + 1) - low)).clamp(0, 1 - 1e-12)
        digits.append(digit)
    return torch.stack(digits[::-1], dim=-1).reshape(*batch, points, steps)


def _check_draw(
    where: str, weights: Tensor, chains: int, steps: int, needed: int, generator: torch.Generator | None
) -> torch.device:
    """Where random numbers are drawn; raises if there would be none, or if there is no room for `needed` bytes per item."""
    if chains < 1 or steps < 1:
        raise ValueError(f"{where}: wanted at least 1 chain of 1 step, got {chains} of {steps}.")
    device = generator.device if generator is not None else torch.device("cpu")
    what = f"{chains} chains of {steps} steps"
    for place in {device, weights.device}:
        check_memory(where, what, math.prod(weights.shape[:-1]) * needed, place)
    return device

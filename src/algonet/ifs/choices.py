"""Which map a chain applies at each step, drawn in advance: the picture is then a smooth function of the maps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.core.memory import check_memory


def draw_choices(weights: Tensor, chains: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """Choices (*batch, chains, steps) of functions with probabilities in proportion to `weights` (*batch, n).

    Stratified: at each step the chains share out the functions as evenly as the weights allow, in random order; the
    picture is less noisy than with independent choices, and each chain by itself is an ordinary one.

    >>> draw_choices(torch.tensor([0.5, 0.25, 0.25]), 4, 2).sort(0).values[:, 0]
    tensor([0, 0, 1, 2])
    """
    where = "draw_choices"
    if chains < 1 or steps < 1:
        raise ValueError(f"{where}: `chains` and `steps` must be at least 1, got {chains} and {steps}.")
    # Random numbers, their order, the ladder and the choices
    needed = math.prod(weights.shape[:-1]) * chains * steps * 28
    check_memory(where, f"{chains} chains of {steps} steps", needed, generator.device if generator else None)
    device = generator.device if generator is not None else torch.device("cpu")
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
    if points < 1 or steps < 1:
        raise ValueError(f"draw_addresses: `points` and `steps` must be at least 1, got {points} and {steps}.")
    batches = math.prod(weights.shape[:-1])
    # The numbers that are decoded in double precision, and 64-bit choices
    check_memory(
        "draw_addresses", f"{points} points in {steps} steps", batches * points * (24 + 8 * steps), weights.device
    )
    shares = weights.detach().double()
    batch, shares = shares.shape[:-1], shares.reshape(-1, shares.shape[-1])
    bounds = (shares / shares.sum(-1, keepdim=True)).cumsum(-1)
    bounds = torch.cat([torch.zeros_like(bounds[:, :1]), bounds[:, :-1], torch.ones_like(bounds[:, :1])], dim=-1)
    device = generator.device if generator is not None else torch.device("cpu")
    jitter = torch.rand(len(shares), points, generator=generator, dtype=torch.float64, device=device).to(shares.device)
    u = (torch.arange(points, device=shares.device) + jitter) / points
    digits = []
    for _ in range(steps):
        digit = torch.searchsorted(bounds[:, 1:-1].contiguous(), u, right=True)
        low = bounds.gather(1, digit)
        u = ((u - low) / (bounds.gather(1, digit + 1) - low)).clamp(0, 1 - 1e-12)
        digits.append(digit)
    return torch.stack(digits[::-1], dim=-1).reshape(*batch, points, steps)

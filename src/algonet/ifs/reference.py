"""The plain-torch truth of the smooth raster and of the chaos game: slow, dense, differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor

#: Positions (in pixels) and scaled distances are clamped here: beyond, a Gaussian's share is 0 in every precision.
FAR_PIXELS = 1e9
FAR_SIGMAS = 40.0
#: Standard deviations (in pixels) stay above this, so that quotients by their square are finite.
LEAST_SIGMA = 1e-6
#: States and parameters of the chaos game are clamped here: a divergent system gives large numbers, never NaN.
FAR_STATE = 1e12
FAR_PARAMETER = 1e18
#: Gradients of a divergent system are clamped here by the kernels.
FAR_GRADIENT = 1e30


def axis_masses(positions: Tensor, sigma: Tensor, size: int) -> Tensor:
    """Mass of a normal distribution around each position in each unit interval [i, i+1), i < size.

    positions (*batch, N) in pixels and sigma (*batch) give (*batch, N, size): Phi((i+1-u)/sigma) - Phi((i-u)/sigma).
    """
    edges = torch.arange(size + 1, dtype=positions.dtype, device=positions.device)
    positions = positions.clamp(-FAR_PIXELS, FAR_PIXELS)
    scaled = (edges - positions[..., None]) / sigma.clamp_min(LEAST_SIGMA)[..., None, None]
    scaled = scaled.clamp(-FAR_SIGMAS, FAR_SIGMAS)
    low, high = scaled[..., :-1], scaled[..., 1:]
    # Differences of two numbers near 1 cancel; mirrored, both are small and the difference keeps its digits
    side = torch.where(low + high > 0, -1.0, 1.0).to(scaled.dtype)
    return side * (torch.special.ndtr(side * high) - torch.special.ndtr(side * low))


def intensities(shares: Tensor, logs: bool) -> Tensor:
    """What a share adds to its pixel's sum: itself, or -log(1 - share), kept finite one rounding step below 1."""
    if not logs:
        return shares
    return -torch.log1p(-shares.clamp_max(1.0) * (1 - torch.finfo(shares.dtype).eps))


def splat(
    points: Tensor, sigma: Tensor, weights: Tensor, features: Tensor, size: tuple[int, int], logs: bool
) -> Tensor:
    """Per pixel, the sum over points of their intensity, and of intensity times each feature: densely.

    points (*batch, N, 2) in pixels (x right, y down), sigma (*batch), weights (*batch, N) or (*batch, 0) for all 1,
    features (*batch, N, C) give (*batch, 1 + C, H, W). Memory N H W; points are taken in chunks of bounded size.
    """
    height, width = size
    *batch, count, _ = points.shape
    if weights.shape[-1] != count:
        weights = points.new_ones(*batch, count)
    items = max(points[..., 0, 0].numel() if count else 1, 1)
    chunk = max(1, 2**24 // max(1, height * width * items))
    total = points.new_zeros(*batch, 1 + features.shape[-1], height, width)
    for first in range(0, count, chunk):
        part = slice(first, first + chunk)
        across = axis_masses(points[..., part, 0], sigma, width)
        down = axis_masses(points[..., part, 1], sigma, height)
        q = intensities(weights[..., part, None, None] * down[..., :, None] * across[..., None, :], logs)
        sums = [q.sum(-3, keepdim=True)]
        sums += [(q * f[..., None, None]).sum(-3, keepdim=True) for f in features[..., part, :].unbind(-1)]
        total = total + torch.cat(sums, dim=-3)
    return total


def splat_separable(points: Tensor, sigma: Tensor, weights: Tensor, features: Tensor, size: tuple[int, int]) -> Tensor:
    """`splat` without logarithms as one matrix product over the points: memory N (H + W) whatever sigma is."""
    height, width = size
    *_, count, _ = points.shape
    across = axis_masses(points[..., 0], sigma, width)
    down = axis_masses(points[..., 1], sigma, height)
    if weights.shape[-1] == count:
        down = down * weights[..., None]
    layers = [down, *(down * f[..., None] for f in features.unbind(-1))]
    return torch.stack([layer.mT @ across for layer in layers], dim=-3)


def chaos(parameters: Tensor, choices: Tensor, start: Tensor, burn_in: int, horizon: int) -> Tensor:
    """All points that the chains visit after `burn_in` steps.

    parameters (*batch, n, 6), choices (*batch, chains, steps), start (*batch, chains, 2) give
    (*batch, chains, steps - burn_in, 2). `horizon` > 0 cuts the gradient before every horizon-th step.
    """
    offset, linear = split_parameters(parameters.clamp(-FAR_PARAMETER, FAR_PARAMETER))
    state, visited = start.clamp(-FAR_STATE, FAR_STATE), []
    for step in range(choices.shape[-1]):
        if horizon and step and step % horizon == 0:
            state = state.detach()
        chosen = choices[..., step].long()
        a = torch.take_along_dim(linear.flatten(-2), chosen[..., None], dim=-2).unflatten(-1, (2, 2))
        b = torch.take_along_dim(offset, chosen[..., None], dim=-2)
        state = ((a * state[..., None, :]).sum(-1) + b).clamp(-FAR_STATE, FAR_STATE)
        if step >= burn_in:
            visited.append(state)
    if not visited:
        return start.new_zeros(*start.shape[:-1], 0, 2)
    return torch.stack(visited, dim=-2)


def split_parameters(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """(offset (..., n, 2), linear part (..., n, 2, 2)) of x -> x + a + B x: the linear part is I + B."""
    rows = parameters.unflatten(-1, (2, 3))
    eye = torch.eye(2, dtype=parameters.dtype, device=parameters.device)
    return rows[..., 0], rows[..., 1:] + eye


def join_parameters(offset: Tensor, linear: Tensor) -> Tensor:
    """The inverse of `split_parameters`."""
    eye = torch.eye(2, dtype=linear.dtype, device=linear.device)
    return torch.cat([offset[..., None], linear - eye], dim=-1).flatten(-2)

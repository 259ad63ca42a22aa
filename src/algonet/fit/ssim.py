"""How alike two pictures are."""

from __future__ import annotations

import torch
from torch import Tensor


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of pictures (*batch, H, W) with values in [0, 1]: 1 for equal ones, about 0 for unrelated.

    The usual settings: a Gaussian window of standard deviation 1.5 (11 pixels wide, only where it fits whole),
    constants 0.01^2 and 0.03^2, averaged over the picture. Differentiable.

    >>> picture = torch.rand(16, 16)
    >>> float(ssim(picture, picture))
    1.0
    """
    if a.shape[-2:] != b.shape[-2:] or min(a.shape[-2:]) < 11:
        raise ValueError(
            f"ssim: wanted two pictures of one size from 11 x 11 on, got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    a, b = torch.broadcast_tensors(a, b)
    down, across = _windows(a, a.shape[-2]), _windows(a, a.shape[-1])
    mean_a, mean_b, aa, bb, ab = (down @ torch.stack([a, b, a * a, b * b, a * b]) @ across.mT).unbind()
    spread_a, spread_b, joint = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    likeness = (2 * mean_a * mean_b + c1) * (2 * joint + c2)
    return (likeness / ((mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2))).mean((-2, -1))


def _windows(like: Tensor, size: int) -> Tensor:
    """(size - 10, size): row i averages pixels i to i + 10. One matrix product is faster than a convolution on a CPU."""
    position = torch.arange(size, dtype=like.dtype, device=like.device)
    distance = position[None, :] - position[: size - 10, None] - 5
    rows = torch.exp(-0.5 * distance**2 / 1.5**2) * (distance.abs() <= 5)
    return rows / rows.sum(-1, keepdim=True)

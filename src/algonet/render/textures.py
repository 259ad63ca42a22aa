"""Textures: pictures on surfaces."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_texture(texture: Tensor, uv: Tensor) -> Tensor:
    """Bilinear lookup of `texture` (*B, h, w, C) at `uv` (*B, H, W, 2), u to the right and v up; edges are repeated.

    Differentiable in both; piecewise linear in uv between texel centres.

    >>> checker = torch.tensor([[[0.0], [1.0]], [[1.0], [0.0]]])
    >>> sample_texture(checker, torch.tensor([[[0.25, 0.75], [0.75, 0.75]]]))[0, :, 0]
    tensor([0., 1.])
    """
    if texture.dim() not in (3, uv.dim()):
        raise ValueError(
            "sample_texture: `texture` must be (h, w, C) or share the batch of `uv`: "
            f"got {tuple(texture.shape)} and {tuple(uv.shape)}."
        )
    batch = uv.shape[:-3]
    grid = torch.stack([2 * uv[..., 0] - 1, 1 - 2 * uv[..., 1]], -1).reshape(-1, *uv.shape[-3:])
    image = texture.to(uv.dtype).movedim(-1, -3)
    image = image.reshape(-1, *image.shape[-3:]).expand(grid.shape[0], *image.shape[-3:])
    sampled = torch.nn.functional.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled.movedim(-3, -1).reshape(*batch, *uv.shape[-3:-1], texture.shape[-1])

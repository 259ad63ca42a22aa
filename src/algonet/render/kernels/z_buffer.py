"""The hard z-buffer in plain torch, for devices other than the CPU: every pixel against every face, band by band."""

from __future__ import annotations

import torch
from torch import Tensor

#: Pixels times faces looked at in one go: 2^25 floats are 128 MiB, and there are about four such tensors at a time.
AT_ONCE = 2**25
#: How far outside a face, as a share of its height, a pixel still counts: what rounding of single precision takes away, so
#: that no crack opens between two faces.
_SLACK = 1e-4


def z_buffer(
    points: Tensor, faces: Tensor, near: Tensor, perspective: bool, two_sided: bool, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Depth (N, H, W; infinity where nothing is), index (N, H, W; -1 there) and corner weights (N, H, W, 3).

    `points` (N, V, 3) in pixels times depth, and depth, `near` (N,). A face's barycentric shares are affine in the pixel, and
    so is the inverse of its depth (its depth, without perspective): four planes per face decide everything. They are made
    in double precision and looked at in that of the points.
    """
    height, width = size
    planes, nearness, usable = _planes(points[:, faces].double(), near, perspective, two_sided)
    planes, nearness = planes.to(points), nearness.to(points)
    per_row = max(1, len(points) * len(faces) * width)
    band = max(1, min(height, AT_ONCE // per_row))
    found = [
        _band(planes, nearness, usable, first, min(band, height - first), width) for first in range(0, height, band)
    ]
    best, index = (torch.cat(parts, 1).reshape(-1, height, width) for parts in zip(*found, strict=True))
    seen = best > -torch.inf
    index = torch.where(seen, index, -1)
    depth = torch.where(seen, 1 / best if perspective else -best, torch.inf)
    return depth, index, _weights(planes, points[:, faces, 2], index, depth, perspective)


def _planes(corners: Tensor, near: Tensor, perspective: bool, two_sided: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Per face the three shares (N, F, 3, 3) and the nearness (N, F, 3) as c0 x + c1 y + c2, and whether it counts (N, F)."""
    z = corners[..., 2]
    # Where the smooth renderer's face has faded by half, it is gone
    usable = (z > 1.5 * near[:, None, None]).all(-1)
    w = 1 / torch.where(usable[..., None], z, 1.0) if perspective else torch.ones_like(z)
    x, y = corners[..., 0] * w, corners[..., 1] * w
    area = (y[..., 1] - y[..., 0]) * (x[..., 2] - x[..., 0]) - (x[..., 1] - x[..., 0]) * (y[..., 2] - y[..., 0])
    usable = usable & (area != 0) & ((area > 0) | two_sided)
    (xj, xk), (yj, yk) = ((t.roll(-1, -1), t.roll(-2, -1)) for t in (x, y))
    shares = torch.stack([yk - yj, xj - xk, yj * xk - xj * yk], -1)
    shares = shares / torch.where(usable, area, 1.0)[..., None, None]
    nearness = (shares * (w if perspective else -z)[..., None]).sum(-2)
    return shares, nearness, usable


def _band(planes: Tensor, nearness: Tensor, usable: Tensor, first: int, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Of each pixel of a band of rows: the nearness of its nearest face (N, rows * W), -infinity for none, and that face."""
    y = (torch.arange(first, first + rows, device=planes.device) + 0.5).repeat_interleave(width)[:, None]
    x = (torch.arange(width, device=planes.device) + 0.5).repeat(rows)[:, None]
    x, y = x.to(planes), y.to(planes)

    def at(plane: Tensor) -> Tensor:
        c0, c1, c2 = plane[:, None].unbind(-1)
        return torch.addcmul(torch.addcmul(c2, c0, x), c1, y)

    least = at(planes[:, :, 0]).minimum(at(planes[:, :, 1])).minimum(at(planes[:, :, 2]))
    inside = (least >= (-_SLACK if least.dtype == torch.float32 else 0.0)) & usable[:, None]
    best, index = torch.where(inside, at(nearness), -torch.inf).max(-1)
    return best, index


def _weights(planes: Tensor, z: Tensor, index: Tensor, depth: Tensor, perspective: bool) -> Tensor:
    """The corners' perspective-correct weights (N, H, W, 3) at each pixel, 0 where nothing is."""
    picture = torch.arange(len(index), device=index.device)[:, None, None]
    own = planes[picture, index.clamp_min(0)]
    x = torch.arange(index.shape[-1], device=index.device, dtype=planes.dtype) + 0.5
    y = torch.arange(index.shape[-2], device=index.device, dtype=planes.dtype)[:, None] + 0.5
    shares = own[..., 0] * x[..., None] + own[..., 1] * y[..., None] + own[..., 2]
    if perspective:
        shares = shares / z[picture, index.clamp_min(0)] * depth[..., None]
    return torch.where((index >= 0)[..., None], shares, 0.0)

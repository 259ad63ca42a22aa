"""Which face each pixel's centre sees, and where in it: the rasteriser's reference in plain torch, and its gradients.

Corners are snapped to a grid of 1 / UNITS pixels. With the eye at the origin, and corners P_i = (x_i w_i, y_i w_i, w_i),

    v_i(x, y) = s det[(x, y, 1); P_k; P_j],    (i, j, k) cyclic,   s = the sign of det[P_0; P_1; P_2], turned likewise

are linear in the pixel, and it lies in the part of a face before the eye where none is negative, also if corners lie
behind the eye. Where v_i = 0, the pixel belongs to the face that lies to the right of the edge, or below it if the edge is
level. Between corners before the eye the arithmetic is exact (integers in float64), and an edge's two faces have opposite
v_i: a pixel on it belongs to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: Places per pixel that corners are snapped to.
UNITS = 256
#: Snapped corners within this many units (2^15 pixels) have edges whose arithmetic float64 does exactly: its terms stay
#: below 2^49.
EXACT = float(1 << 23)
#: Depth, as bits, in the upper half and the face in the lower: the least is the nearest, and of equals the first.
NOTHING = (1 << 63) - 1
#: Pixels times faces that the reference looks at in one go.
AT_ONCE = 1 << 21


@dataclass(frozen=True)
class VisibilitySettings:
    """Of the hard rasteriser: the picture's size; without `perspective` w is 1; `two_sided`: back faces are seen too."""

    height: int
    width: int
    perspective: bool = True
    two_sided: bool = True


class Edges(NamedTuple):
    """Of faces (..., F): v_i = a_i (x - x_i) + b_i (y - y_i) + c_i, all (..., F, 3), in units and positive inside, where
    (x_i, y_i) is a snapped corner, or 0; `weight`: what makes them determinants; `owned`: whether v_i = 0 counts as inside;
    the corners' depth. `usable` (..., F): whether the face is seen at all."""

    a: Tensor
    b: Tensor
    c: Tensor
    x: Tensor
    y: Tensor
    weight: Tensor
    owned: Tensor
    depth: Tensor
    usable: Tensor


def visible_faces(tensors: Sequence[Tensor], settings: VisibilitySettings) -> list[Tensor]:
    """The face (*B, H, W) that each pixel's centre sees, -1 for none, of points (*B, V, 3), near (*B,) and faces (F, 3)."""
    points, near, faces = tensors
    batch, height, width = points.shape[:-2], settings.height, settings.width
    flat, near = points.detach().reshape(-1, *points.shape[-2:]), near.detach().double().reshape(-1)
    edges = edges_of(flat[:, faces.long()].double(), settings)
    band = max(1, min(height, AT_ONCE // max(1, len(faces) * width * len(flat))))
    rows = [_band(edges, near, first, min(band, height - first), width) for first in range(0, height, band)]
    return [torch.cat(rows, -1).reshape(*batch, height, width)]


def edges_of(corners: Tensor, settings: VisibilitySettings) -> Edges:
    """Of corners (..., F, 3, 3) in float64: x w and y w in pixels, and depth."""
    z = corners[..., 2]
    w = z if settings.perspective else torch.ones_like(z)
    ahead = w > 0
    snapped = torch.floor(corners[..., :2] * UNITS / torch.where(ahead, w, 1.0)[..., None] + 0.5)
    exact = ahead & (snapped.abs() <= EXACT).all(-1)
    snapped = torch.where(exact[..., None], snapped, 0.0)
    plane = torch.where(exact[..., None], snapped * w[..., None], corners[..., :2] * UNITS)
    near, far = torch.cat([snapped, torch.ones_like(z)[..., None]], -1), torch.cat([plane, w[..., None]], -1)
    j, k = [1, 2, 0], [2, 0, 1]
    both = exact[..., j] & exact[..., k]
    (xj, yj, wj), (xk, yk, wk) = (
        torch.where(both[..., None], near[..., i, :], far[..., i, :]).unbind(-1) for i in (j, k)
    )
    a, b = yk * wj - yj * wk, xj * wk - xk * wj
    # An edge is 0 at its snapped corners, whatever rounding does to a and b
    x, y = torch.where(exact[..., j, None], snapped[..., j, :], snapped[..., k, :]).unbind(-1)
    c = torch.where(exact[..., j] | exact[..., k], 0.0, yj * xk - xj * yk)
    weight = torch.where(both, w[..., j] * w[..., k], 1.0)
    x0, y0, w0 = torch.where(exact[..., :1], near[..., 0, :], far[..., 0, :]).unbind(-1)
    area = a[..., 0] * (x0 - x[..., 0] * w0) + b[..., 0] * (y0 - y[..., 0] * w0) + c[..., 0] * w0
    usable = ((area > 0) | ((area < 0) & settings.two_sided)) & corners.isfinite().all(-1).all(-1)
    sign = torch.where(area < 0, -1.0, 1.0)[..., None]
    a, b, c = sign * a, sign * b, sign * c
    return Edges(a, b, c, x, y, weight, (a > 0) | ((a == 0) & (b > 0)), z, usable)


def _band(edges: Edges, near: Tensor, first: int, rows: int, width: int) -> Tensor:
    """The faces that some rows see, (N, rows * width)."""
    y = (torch.arange(first, first + rows, device=near.device) * UNITS + UNITS // 2).repeat_interleave(width).double()
    x = (torch.arange(width, device=near.device) * UNITS + UNITS // 2).repeat(rows).double()
    inside = edges.usable[..., None]
    total, depth = torch.zeros((), dtype=y.dtype, device=y.device), torch.zeros((), dtype=y.dtype, device=y.device)
    for i in range(3):
        a, b, c, left, top, weight, owned, z = (t[..., i, None] for t in edges[:-1])
        v = a * (x - left) + b * (y - top) + c
        inside = inside & ((v > 0) | ((v == 0) & owned))
        total, depth = total + v * weight, depth + v * weight * z
    # Rounding, or a face seen from its edge, must not carry a depth out of the face
    z = edges.depth
    depth = torch.minimum(torch.maximum(depth / total, z.amin(-1, keepdim=True)), z.amax(-1, keepdim=True))
    inside = inside & (depth > near[:, None, None])
    bits = torch.where(inside, depth, torch.inf).float().view(torch.int32).long()
    number = torch.arange(inside.shape[-2], device=y.device)[:, None]
    if not inside.shape[-2]:
        return torch.full((len(near), rows * width), -1, device=y.device)
    return unpacked(torch.where(inside, (bits << 32) | number, NOTHING).amin(-2))


def unpacked(nearest: Tensor) -> Tensor:
    """Faces, from depths and faces in one number."""
    return torch.where(nearest == NOTHING, -1, nearest & 0xFFFFFFFF)


def barycentrics(points: Tensor, faces: Tensor, seen: Tensor, perspective: bool) -> tuple[Tensor, Tensor]:
    """The corners' shares (*B, H, W, 3) and the depth (*B, H, W) at the pixels that see faces `seen`; 0 and infinity elsewhere.

    With corners P_i = (x_i, y_i, w_i) as seen from the pixel, e_i = x_k y_j - x_j y_k are the shares, but for their sum.
    """
    batch, (height, width) = seen.shape[:-2], seen.shape[-2:]
    there = seen >= 0
    rows = faces.long()[seen.clamp_min(0)].reshape(*batch, -1, 1).expand(*batch, -1, 3)
    corners = torch.gather(points, -2, rows).reshape(*batch, height, width, 3, 3)
    # A pixel that sees nothing reads a dummy face, or its gradients could be NaN
    corners = torch.where(there[..., None, None], corners, torch.eye(3).to(points))
    x, y, z = corners.unbind(-1)
    w = z if perspective else torch.ones_like(z)
    x = x - w * (torch.arange(width, device=points.device) + 0.5)[:, None]
    y = y - w * (torch.arange(height, device=points.device) + 0.5)[:, None, None]
    j, k = [1, 2, 0], [2, 0, 1]
    e = x[..., k] * y[..., j] - x[..., j] * y[..., k]
    total = e.sum(-1, keepdim=True)
    # Snapping lets a pixel see a face that its centre just misses
    shares = (e / torch.where(total == 0, 1.0, total)).clamp_min(0)
    whole = shares.sum(-1, keepdim=True)
    shares = torch.where(whole > 0, shares / torch.where(whole > 0, whole, 1.0), 1 / 3)
    depth = torch.where(there, (shares * z).sum(-1), torch.inf)
    return torch.where(there[..., None], shares, 0.0), depth

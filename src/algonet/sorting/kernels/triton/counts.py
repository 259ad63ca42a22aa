"""Smooth counts and their inverse on the GPU: pairs where they are few or the sigmoid has kinks, else a grid and an FFT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.launch import Launch

from ...counts import CountSettings, margin_of, node_table, nodes_per_unit, reach
from .source import kernels

#: Items, and points, of a row up to which pairs are added up; nodes of a grid beyond which they are, too.
FEW, NODES = 128, 2**24
BLOCK, ITEMS = 32, 64


def soft_counts_forward(tensors: Sequence[Tensor], settings: CountSettings) -> tuple[list[Tensor], list[Tensor]]:
    y, x, w = tensors
    far = y.isinf()
    found = _counts(torch.where(far, 0.0, y), x, w, settings)[0]
    total = (y > 0).to(y.dtype).unsqueeze(-1) * w.sum(-2, keepdim=True)
    return [torch.where(far.unsqueeze(-1), total, found).contiguous()], []


def soft_counts_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], settings: CountSettings, needs: Any
) -> list[Tensor | None]:
    """Gradients by items and weights are counts of the points, seen from the items: r(-x - (-y))."""
    y, x, w = tensors
    far = y.isinf().unsqueeze(-1)
    near, g = torch.where(far.squeeze(-1), 0.0, y), torch.where(far, 0.0, grads[0])
    slope = _counts(near, x, w, settings)[1]
    grad_w, back = _counts(-x, -near, g, settings)
    grad_w = grad_w + torch.where(far & (y > 0).unsqueeze(-1), grads[0], 0.0).sum(-2, keepdim=True)
    found = [(g * slope).sum(-1), -(w * back).sum(-1), grad_w.contiguous()]
    return [gradient if need else None for gradient, need in zip(found, needs, strict=True)]


def soft_quantiles_forward(tensors: Sequence[Tensor], settings: CountSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, w, k = tensors
    y, slopes = torch.empty(k.shape, dtype=k.dtype, device=k.device), torch.zeros_like(k).contiguous()
    if not k.numel() or not x.shape[-1]:
        return [torch.where(k > 0, torch.inf, -torch.inf).to(k.dtype)], [torch.zeros_like(k), slopes]
    rows, n, m = k[..., 0].numel(), x.shape[-1], k.shape[-1]
    present, total = w != 0, w.sum(-1, keepdim=True)
    least = torch.where(present, x, torch.inf).amin(-1, keepdim=True)
    x = torch.where(present, x, torch.where(present.any(-1, keepdim=True), least, 0.0))
    # Few items ask the device for no number: their bracket holds every count from 0.001 on
    few = max(n, m) <= FEW or not nodes_per_unit(settings.sigmoid, settings.precise)
    margin = reach(settings.sigmoid, 1e-3 / n) + 1.0 if few else margin_of(settings.sigmoid, w, k)
    low, high = x.amin(-1, keepdim=True) - margin, x.amax(-1, keepdim=True) + margin
    inside = (k > 0) & (k < total)
    field = _field(x, w.unsqueeze(-1), low, high, m, settings)
    launch = Launch(
        kernels("counts", settings.sigmoid).roots_kernel, rows * -(-m // BLOCK), warps=4, m=m, n=n, size=field.size,
        per=float(field.per), GRID=field.per > 0, PRECISE=settings.precise, BLOCK=BLOCK, ITEMS=ITEMS, ROUNDS=150,
    )  # fmt: skip
    launch.start(
        x_ptr=x.contiguous(), w_ptr=w.contiguous(), k_ptr=torch.where(inside, k, total / 2).contiguous(),
        low_ptr=low.contiguous(), high_ptr=high.contiguous(), field_ptr=field.values, least_ptr=field.least,
        y_ptr=y, slope_ptr=slopes,
    )  # fmt: skip
    beyond = torch.where((total * k).isnan() | low.isnan(), torch.nan, torch.where(k > 0, torch.inf, -torch.inf))
    y = torch.where(inside & ~low.isnan(), y, beyond)
    return [y], [y.clone(), torch.where(inside, slopes, 0.0)]


def soft_quantiles_saved(tensors: Sequence[Tensor], settings: CountSettings) -> list[Tensor]:
    return [tensors[2].new_empty(tensors[2].shape) for _ in range(2)]


def soft_quantiles_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], settings: CountSettings, needs: Any
) -> list[Tensor | None]:
    """dy = (dk + sum_j w_j r'(y - x_j) dx_j) / S'(y)."""
    x, w, _ = tensors
    y, slopes = saved
    steep = slopes > 1e-290
    grad_k = torch.where(steep, grads[0] / torch.where(steep, slopes, 1.0), 0.0)
    near = torch.where(y.isinf(), 0.0, y)
    items = torch.where(w != 0, x, near[..., :1])
    slope = _counts(-items, -near, grad_k.unsqueeze(-1), settings)[1].squeeze(-1)
    return [w * slope if needs[0] else None, None, grad_k if needs[2] else None]


class _Field(NamedTuple):
    """The values of a spline at `size` nodes of each row and channel, from `least` on; none (`per` 0) where pairs are added."""

    values: Tensor
    least: Tensor
    size: int
    per: int


def _field(x: Tensor, w: Tensor, low: Tensor, high: Tensor, m: int, settings: CountSettings) -> _Field:
    per, (n, channels) = nodes_per_unit(settings.sigmoid, settings.precise), w.shape[-2:]
    least = torch.minimum(low, x.amin(-1, keepdim=True)).contiguous()
    pairs = _Field(x, least, 0, 0)
    if not per or max(n, m) <= FEW:
        return pairs
    span = float((torch.maximum(high, x.amax(-1, keepdim=True)) - least).amax())
    rows = x[..., 0].numel()
    if not span * per * rows * channels < NODES:
        return pairs
    size = int(span * per) + 6
    grid = torch.zeros(rows * channels, size, dtype=torch.float64, device=x.device)
    launch = Launch(
        kernels("counts", settings.sigmoid).spread_kernel, rows * channels * -(-n // 256), warps=4, n=n, channels=channels,
        size=size, per=float(per), BLOCK=256,
    )  # fmt: skip
    launch.start(x_ptr=x.contiguous(), w_ptr=_by_channel(w), least_ptr=least, grid_ptr=grid)
    length = 1 << (3 * size - 1).bit_length()
    table = node_table(settings.sigmoid, per, size).to(x.device)
    values = torch.fft.irfft(torch.fft.rfft(grid, length) * torch.fft.rfft(table, length), length)
    return _Field(values[:, size : 2 * size].contiguous(), least, size, per)


def _by_channel(w: Tensor) -> Tensor:
    return w.movedim(-1, -2).contiguous()


def _counts(y: Tensor, x: Tensor, w: Tensor, settings: CountSettings) -> tuple[Tensor, Tensor]:
    """(S, S') (*batch, m, c) at finite points."""
    m, (n, channels) = y.shape[-1], w.shape[-2:]
    if not m or not n or not channels or not y.numel():
        nothing = y.unsqueeze(-1) * w.sum(-2, keepdim=True)
        return nothing, nothing
    field = _field(x, w, y.amin(-1, keepdim=True), y.amax(-1, keepdim=True), m, settings)
    lines = math.prod(y.shape[:-1]) * channels
    value = torch.empty(*y.shape[:-1], channels, m, dtype=torch.float64, device=y.device)
    slope = torch.empty_like(value)
    launch = Launch(
        kernels("counts", settings.sigmoid).counts_kernel, lines * -(-m // BLOCK), warps=4, m=m, n=n, channels=channels,
        size=field.size, per=float(field.per), GRID=field.per > 0, PRECISE=settings.precise, BLOCK=BLOCK, ITEMS=ITEMS,
    )  # fmt: skip
    launch.start(
        y_ptr=y.contiguous(), x_ptr=x.contiguous(), w_ptr=_by_channel(w), field_ptr=field.values, least_ptr=field.least,
        value_ptr=value, slope_ptr=slope,
    )  # fmt: skip
    return value.movedim(-2, -1), slope.movedim(-2, -1)


SoftCountsPlan = plan_from(soft_counts_forward, soft_counts_backward)

SoftQuantilesPlan = plan_from(soft_quantiles_forward, soft_quantiles_backward, soft_quantiles_saved)

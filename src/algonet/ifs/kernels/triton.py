"""The smooth raster and the chaos game on the GPU.

Raster: a program takes a few points and adds their windows, tile by tile, to the picture. Forward, each tile is one atomic
addition per pixel, along rows so that neighbours share a memory sector. Float sums then depend on the order of arrival in the
last bits; with `deterministic` they are 64-bit integers (in units of 2^-32), whose sum has no order. Backward, every point
gathers: no atomics, always reproducible.

Chaos game: a program steps a block of chains in registers, and walks them back for the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from algonet.core.codegen.triton_math import kernel, log_complement, short_of_one
from algonet.core.identity import Signature
from algonet.core.launch import Launch

from ..reference import FAR_GRADIENT, FAR_PARAMETER, FAR_PIXELS, FAR_STATE, LEAST_SIGMA
from .layout import ChaosPlan, RasterPlan, laid_out

#: Fixed-point units of the deterministic sums: finer than float32 at 1, and sums up to 2^31 fit.
FIXED_POINT = 2.0**32
_UNITS = tl.constexpr(FIXED_POINT)
_FAR_PIXELS, _LEAST = tl.constexpr(FAR_PIXELS), tl.constexpr(LEAST_SIGMA)


@triton.jit
def _pair(at, mask):
    return tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0)


@triton.jit
def _store_pair(at, x, y, mask):
    tl.store(at, x, mask=mask)
    tl.store(at + 1, y, mask=mask)


@triton.jit
def _window(u, radius, size):
    """First and last pixel within `radius` of u inside the picture, and whether there is one."""
    first = tl.minimum(tl.maximum(tl.floor(u - radius), 0.0), size * 1.0)
    last = tl.minimum(tl.maximum(tl.floor(u + radius), -1.0), size - 1.0)
    # Not `last >= first`: in float64 Triton 3.7 fails to lay out that comparison, for every target
    return first.to(tl.int32), last.to(tl.int32), (u + radius >= 0.0) & (u - radius < size * 1.0)


@triton.jit
def _axis(first, last, u, inverse, tile, B: tl.constexpr):
    """Pixels of a tile of the windows along one axis, which of them there are, a point's mass in each, and its edges."""
    pixel = first[:, None] + tile + tl.arange(0, B)[None, :]
    inside = pixel <= last[:, None]
    low = (pixel.to(u.dtype) - u[:, None]) * inverse
    high = low + inverse
    mass = 0.5 * (tl.erf(high * 0.7071067811865476) - tl.erf(low * 0.7071067811865476))
    return pixel, inside, tl.where(inside, mass, 0.0), low, high


@triton.jit
def _slopes(inside, low, high, inverse):
    """Derivatives of the masses by position and by sigma."""
    near = 0.3989422804014327 * tl.exp(-0.5 * low * low)
    far = 0.3989422804014327 * tl.exp(-0.5 * high * high)
    return tl.where(inside, (near - far) * inverse, 0.0), tl.where(inside, (low * near - high * far) * inverse, 0.0)


@triton.jit
def _intensity(share, LOGS: tl.constexpr):
    """The share itself, or -log(1 - share)."""
    if LOGS:
        q = -log_complement(short_of_one(share))
    else:
        q = share
    return q


@triton.jit
def _load_points(
    points, sigma, weights, count, reach, height, width, programs, WEIGHTED: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """A program's points with their windows, and the extent of the largest; windows of points that are NaN are empty."""
    item = (tl.program_id(0) // programs).to(tl.int64)
    i = (tl.program_id(0) % programs) * P + tl.arange(0, P)
    exists = i < count
    at = item * count + i
    u, v = _pair(points + 2 * at, exists)
    if WEIGHTED:
        w = tl.load(weights + at, mask=exists, other=0.0)
    else:
        w = u * 0.0 + 1.0
    raw = tl.load(sigma + item)
    s = tl.maximum(raw, _LEAST)
    rest = w * 0.0 + raw * 0.0
    broken = exists & ((u != u) | (v != v) | (rest != rest))
    u = tl.where(u != u, -_FAR_PIXELS, tl.minimum(tl.maximum(u, -_FAR_PIXELS), _FAR_PIXELS))
    v = tl.where(v != v, -_FAR_PIXELS, tl.minimum(tl.maximum(v, -_FAR_PIXELS), _FAR_PIXELS))
    x0, x1, across = _window(u, reach * s, width)
    y0, y1, down = _window(v, reach * s, height)
    live = exists & (broken == 0) & across & down
    if not WEIGHTED:
        w = u * 0.0 + 1.0  # no longer NaN
    columns = tl.max(tl.where(live, x1 - x0 + 1, 0))
    rows = tl.max(tl.where(live, y1 - y0 + 1, 0))
    return item, at, exists, u, v, w, 1.0 / s, raw, broken, live, x0, x1, y0, y1, columns, rows


@kernel
def splat_forward_kernel(
    points, sigma, weights, features, out, flags,
    count, height, width, reach, programs,
    CHANNELS: tl.constexpr, WEIGHTED: tl.constexpr, LOGS: tl.constexpr, FIXED: tl.constexpr,
    P: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    item, offset, _exists, u, v, w, inverse, _raw, broken, live, x0, x1, y0, y1, columns, rows = _load_points(
        points, sigma, weights, count, reach, height, width, programs, WEIGHTED, P
    )
    tl.atomic_add(flags + item + offset * 0, tl.where(broken, float("nan"), 0.0), mask=broken, sem="relaxed")
    area = height * width
    picture = out + item * ((1 + CHANNELS) * area)
    for tx in range(0, columns, BX):
        jx, in_x, across, _low, _high = _axis(x0, x1, u, inverse, tx, BX)
        for ty in range(0, rows, BY):
            jy, in_y, down, _below, _above = _axis(y0, y1, v, inverse, ty, BY)
            q = _intensity((w[:, None] * down)[:, :, None] * across[:, None, :], LOGS)
            inside = (live[:, None] & in_y)[:, :, None] & in_x[:, None, :]
            at = jy[:, :, None] * width + jx[:, None, :]
            for c in tl.static_range(1 + CHANNELS):
                if c == 0:
                    value = q
                else:
                    value = q * tl.load(features + offset * CHANNELS + (c - 1), mask=live, other=0.0)[:, None, None]
                if FIXED:
                    value = tl.floor(value * _UNITS + 0.5).to(tl.int64)
                tl.atomic_add(picture + c * area + at, value, mask=inside, sem="relaxed")


@kernel
def splat_backward_kernel(
    grads, points, sigma, weights, features, grad_points, grad_sigma, grad_weights, grad_features,
    count, height, width, reach, programs,
    CHANNELS: tl.constexpr, WEIGHTED: tl.constexpr, LOGS: tl.constexpr, SIGMA: tl.constexpr,
    P: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    item, offset, exists, u, v, w, inverse, raw, _broken, live, x0, x1, y0, y1, columns, rows = _load_points(
        points, sigma, weights, count, reach, height, width, programs, WEIGHTED, P
    )
    area = height * width
    picture = grads + item * ((1 + CHANNELS) * area)
    total_u, total_v, total_s, total_w = u * 0.0, u * 0.0, u * 0.0, u * 0.0
    for tx in range(0, columns, BX):
        jx, in_x, across, low, high = _axis(x0, x1, u, inverse, tx, BX)
        across_u, across_s = _slopes(in_x, low, high, inverse)
        for ty in range(0, rows, BY):
            jy, in_y, down, below, above = _axis(y0, y1, v, inverse, ty, BY)
            down_v, down_s = _slopes(in_y, below, above, inverse)
            inside = (live[:, None] & in_y)[:, :, None] & in_x[:, None, :]
            at = jy[:, :, None] * width + jx[:, None, :]
            grad_q = tl.load(picture + at, mask=inside, other=0.0)
            if LOGS or CHANNELS > 0:
                share = (w[:, None] * down)[:, :, None] * across[:, None, :]
            for c in tl.static_range(CHANNELS):
                g = tl.load(picture + (c + 1) * area + at, mask=inside, other=0.0)
                f = tl.load(features + offset * CHANNELS + c, mask=exists, other=0.0)
                grad_q += g * f[:, None, None]
                found = tl.sum(tl.sum(_intensity(share, LOGS) * g, axis=2), axis=1)
                place = grad_features + offset * CHANNELS + c
                tl.store(place, tl.load(place, mask=exists, other=0.0) + found, mask=exists)
            if LOGS:
                least = 1.1920929e-07
                if share.dtype == tl.float64:
                    least = 2.220446049250313e-16
                grad_q = tl.where(share <= 1.0, grad_q / tl.maximum(1.0 - share, least), 0.0)
            a = tl.sum(grad_q * across[:, None, :], axis=2)
            total_u += tl.sum(down * tl.sum(grad_q * across_u[:, None, :], axis=2), axis=1)
            total_v += tl.sum(down_v * a, axis=1)
            if WEIGHTED:
                total_w += tl.sum(down * a, axis=1)
            if SIGMA:
                total_s += tl.sum(down * tl.sum(grad_q * across_s[:, None, :], axis=2) + down_s * a, axis=1)
    _store_pair(
        grad_points + 2 * offset, tl.where(live, w * total_u, 0.0), tl.where(live, w * total_v, 0.0), exists
    )  # fmt: skip
    if WEIGHTED:
        tl.store(grad_weights + offset, tl.where(live, total_w, 0.0), mask=exists)
    if SIGMA:
        tl.store(grad_sigma + offset, tl.where(live & (raw + u * 0.0 >= _LEAST), w * total_s, 0.0), mask=exists)


_FAR_STATE = tl.constexpr(FAR_STATE)
_MOST = tl.constexpr(FAR_PARAMETER)
_STEEPEST = tl.constexpr(FAR_GRADIENT)


@triton.jit
def _bounded(x, limit):
    """x between -limit and limit; NaN stays NaN."""
    return tl.where(x != x, x, tl.minimum(tl.maximum(x, -limit), limit))


@triton.jit
def _entry(table, f, k: tl.constexpr, live):
    return _bounded(tl.load(table + f * 6 + k, mask=live, other=0.0), _MOST)


@triton.jit
def _row(table, f, d: tl.constexpr, live):
    """Offset and linear part of coordinate d of the chosen maps."""
    a = _entry(table, f, 3 * d + 1, live)
    b = _entry(table, f, 3 * d + 2, live)
    if d == 0:
        a += 1.0
    else:
        b += 1.0
    return _entry(table, f, 3 * d, live), a, b


@triton.jit
def _chains(parameters, choices, start, states, functions, chains, steps, programs, BLOCK: tl.constexpr):
    """The item and chains of a program, which of them there are, and where their maps, choices, starts and states are."""
    item = (tl.program_id(0) // programs).to(tl.int64)
    c = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    row = item * chains + c
    visited = states + (item * (steps + 1) * chains + c) * 2
    return (
        c < chains,
        row,
        parameters + item * functions * 6,
        choices + item * steps * chains + c,
        start + row * 2,
        visited,
    )


@triton.jit
def _tally(total, chosen, p):
    return total + tl.where(chosen, p[:, None], 0.0)


@kernel
def chaos_forward_kernel(
    parameters, choices, start, states, points, functions, chains, steps, burn_in, programs, BLOCK: tl.constexpr
):
    live, row, table, chosen, begin, visited = _chains(
        parameters, choices, start, states, functions, chains, steps, programs, BLOCK
    )
    x, y = _pair(begin, live)
    x, y = _bounded(x, _FAR_STATE), _bounded(y, _FAR_STATE)
    _store_pair(visited, x, y, live)
    drawn = points + row * (steps - burn_in) * 2
    for s in range(steps):
        f = tl.load(chosen + s * chains, mask=live, other=0)
        f = tl.minimum(tl.maximum(f, 0), functions - 1)
        a0, a1, a2 = _row(table, f, 0, live)
        a3, a4, a5 = _row(table, f, 1, live)
        new_x = _bounded(a0 + a1 * x + a2 * y, _FAR_STATE)
        y = _bounded(a3 + a4 * x + a5 * y, _FAR_STATE)
        x = new_x
        _store_pair(visited + (s + 1) * chains * 2, x, y, live)
        _store_pair(drawn + (s - burn_in) * 2, x, y, live & (row * 0 + s >= burn_in))


@kernel
def chaos_backward_kernel(
    grads, parameters, choices, start, states, grad_parameters, grad_start,
    functions, chains, steps, burn_in, horizon, programs,
    BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    live, row, table, chosen, begin, visited = _chains(
        parameters, choices, start, states, functions, chains, steps, programs, BLOCK
    )
    grad_drawn = grads + row * (steps - burn_in) * 2
    x_after, y_after = _pair(visited + steps * chains * 2, live)
    gx, gy = x_after * 0.0, y_after * 0.0
    slot = tl.arange(0, SLOTS)
    # one column per function: a sum over chains at the very end, instead of one atomic addition per step
    t0 = gx[:, None] + slot[None, :] * 0.0
    t1, t2, t3, t4, t5 = t0, t0, t0, t0, t0
    for back in range(steps):
        s = steps - 1 - back
        f = tl.load(chosen + s * chains, mask=live, other=0)
        f = tl.minimum(tl.maximum(f, 0), functions - 1)
        _a0, a1, a2 = _row(table, f, 0, live)
        _a3, a4, a5 = _row(table, f, 1, live)
        now = row * 0 + s
        px, py = _pair(grad_drawn + (s - burn_in) * 2, live & (now >= burn_in))
        px = tl.where(tl.abs(x_after) >= _FAR_STATE, 0.0, _bounded(gx + px, _STEEPEST))
        py = tl.where(tl.abs(y_after) >= _FAR_STATE, 0.0, _bounded(gy + py, _STEEPEST))
        x, y = _pair(visited + s * chains * 2, live)
        here = (f[:, None] == slot[None, :]) & live[:, None]
        t0, t1, t2 = _tally(t0, here, px), _tally(t1, here, px * x), _tally(t2, here, px * y)
        t3, t4, t5 = _tally(t3, here, py), _tally(t4, here, py * x), _tally(t5, here, py * y)
        cut = (now * 0 + horizon > 0) & (now > 0) & (now % tl.maximum(horizon, 1) == 0)
        gx = tl.where(cut, 0.0, a1 * px + a4 * py)
        gy = tl.where(cut, 0.0, a2 * px + a5 * py)
        x_after, y_after = x, y
    x, y = _pair(begin, live)
    gx = tl.where(tl.abs(x) > _FAR_STATE, 0.0, _bounded(gx, _STEEPEST))
    gy = tl.where(tl.abs(y) > _FAR_STATE, 0.0, _bounded(gy, _STEEPEST))
    _store_pair(grad_start + row * 2, gx, gy, live)
    out = grad_parameters + (tl.program_id(0).to(tl.int64) * SLOTS + slot) * 6
    _store_pair(out, tl.sum(t0, axis=0), tl.sum(t1, axis=0), slot >= 0)
    _store_pair(out + 2, tl.sum(t2, axis=0), tl.sum(t3, axis=0), slot >= 0)
    _store_pair(out + 4, tl.sum(t4, axis=0), tl.sum(t5, axis=0), slot >= 0)


#: (points per program, rows and columns of a tile, warps): chosen by timing a million points at sigma 1 px on an H200.
TILES = {"forward": (32, 1, 16, 4), "backward": (128, 1, 1, 4)}
#: Chains per program of the chaos game.
CHAINS = 128


class SmoothRasterPlan(RasterPlan):
    """The picture by one launch over points; its gradients by another."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        self.draw = self._launch(splat_forward_kernel, "forward", FIXED=self.settings.deterministic)
        #: Without and with a gradient by sigma
        self.way_back = [self._launch(splat_backward_kernel, "backward", SIGMA=by_sigma) for by_sigma in (False, True)]

    def _launch(self, kernel: Any, direction: str, **constants: bool) -> Launch:
        per_program, rows, columns, warps = TILES[direction]
        programs, settings = -(-self.count // per_program), self.settings
        return Launch(
            kernel, self.items * programs, warps=warps,
            count=self.count, height=settings.height, width=settings.width, reach=settings.reach, programs=programs,
            CHANNELS=self.layers - 1, WEIGHTED=self.weighted, LOGS=settings.logs, **constants,
            P=per_program, BY=rows, BX=columns,
        )  # fmt: skip

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        given = laid_out(tensors, self.shapes)
        settings, fixed = self.settings, self.settings.deterministic
        kind = torch.int64 if fixed else self.dtype
        total = torch.zeros(self.items, self.layers, settings.height, settings.width, dtype=kind, device=self.device)
        flags = torch.zeros(self.items, dtype=self.dtype, device=self.device)
        self.draw.start(*given, total, flags)
        if fixed:
            total = (total.double() / FIXED_POINT).to(self.dtype)
        total += flags[:, None, None, None]
        return [total.reshape(self.shape)], []

    def parts(self, needs: Sequence[bool]) -> int:
        return self.count if needs[1] else 1

    def pull(self, given: Sequence[Tensor], found: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.way_back[needs[1]].start(*given, *found)


def _steps_first(choices: Tensor) -> Tensor:
    """(items, chains, steps) -> (items, steps, chains), so that neighbouring chains read neighbouring memory."""
    return choices.to(torch.int32).mT.contiguous()


class ChaosGamePlan(ChaosPlan):
    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings = self.settings
        sizes = {"functions": self.functions, "chains": self.chains, "steps": self.steps, "burn_in": settings.burn_in}
        programs = -(-self.chains // CHAINS)
        self.there = Launch(chaos_forward_kernel, self.items * programs, **sizes, programs=programs, BLOCK=CHAINS)
        self.slots = 1 << max(self.functions - 1, 0).bit_length()
        # Many functions need many registers per chain: fewer chains per program then
        block = max(16, min(CHAINS, 1024 // self.slots))
        self.parts = -(-self.chains // block)
        self.way_back = Launch(
            chaos_backward_kernel, self.items * self.parts,
            **sizes, horizon=settings.horizon, programs=self.parts, BLOCK=block, SLOTS=self.slots,
        )  # fmt: skip

    def draw(self, parameters: Tensor, choices: Tensor, *tensors: Tensor) -> None:
        self.there.start(parameters, _steps_first(choices), *tensors)

    def pull(self, grads: Tensor, parameters: Tensor, choices: Tensor, *tensors: Tensor) -> None:
        self.way_back.start(grads, parameters, _steps_first(choices), *tensors)

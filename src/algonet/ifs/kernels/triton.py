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
def _window(u, radius, size):
    """First and last pixel within `radius` of u inside the picture, and whether there is one."""
    first = tl.minimum(tl.maximum(tl.floor(u - radius), 0.0), size * 1.0)
    last = tl.minimum(tl.maximum(tl.floor(u + radius), -1.0), size - 1.0)
    # Not `last >= first`: in float64 Triton 3.7 fails to lay out that comparison, for every target
    return first.to(tl.int32), last.to(tl.int32), (u + radius >= 0.0) & (u - radius < size * 1.0)


@triton.jit
def _masses(pixel, last, u, inverse):
    low = (pixel.to(u.dtype) - u) * inverse
    high = low + inverse
    mass = 0.5 * (tl.erf(high * 0.7071067811865476) - tl.erf(low * 0.7071067811865476))
    return tl.where(pixel <= last, mass, 0.0), low, high


@triton.jit
def _slopes(pixel, last, low, high, inverse):
    """Derivatives of the masses by position and by sigma."""
    near = 0.3989422804014327 * tl.exp(-0.5 * low * low)
    far = 0.3989422804014327 * tl.exp(-0.5 * high * high)
    inside = pixel <= last
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
def _load_points(points, sigma, weights, item, i, live, count, reach, height, width, WEIGHTED: tl.constexpr):
    """Positions, weights and windows of a program's points; windows of points that are NaN are empty."""
    at = item.to(tl.int64) * count + i
    u = tl.load(points + 2 * at, mask=live, other=0.0)
    v = tl.load(points + 2 * at + 1, mask=live, other=0.0)
    if WEIGHTED:
        w = tl.load(weights + at, mask=live, other=0.0)
    else:
        w = u * 0.0 + 1.0
    raw = tl.load(sigma + item)
    s = tl.maximum(raw, _LEAST)
    rest = w * 0.0 + raw * 0.0
    broken = live & ((u != u) | (v != v) | (rest != rest))
    u = tl.where(u != u, -_FAR_PIXELS, tl.minimum(tl.maximum(u, -_FAR_PIXELS), _FAR_PIXELS))
    v = tl.where(v != v, -_FAR_PIXELS, tl.minimum(tl.maximum(v, -_FAR_PIXELS), _FAR_PIXELS))
    x0, x1, across = _window(u, reach * s, width)
    y0, y1, down = _window(v, reach * s, height)
    live = live & (broken == 0) & across & down
    if not WEIGHTED:
        w = u * 0.0 + 1.0  # no longer NaN
    return u, v, w, s, 1.0 / s, raw, broken, live, x0, x1, y0, y1


@kernel
def splat_forward_kernel(
    points, sigma, weights, features, out, flags,
    count, height, width, reach, programs,
    CHANNELS: tl.constexpr, WEIGHTED: tl.constexpr, LOGS: tl.constexpr, FIXED: tl.constexpr,
    P: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) // programs
    i = (tl.program_id(0) % programs) * P + tl.arange(0, P)
    u, v, w, _s, inverse, _raw, broken, live, x0, x1, y0, y1 = _load_points(
        points, sigma, weights, item, i, i < count, count, reach, height, width, WEIGHTED
    )
    tl.atomic_add(flags + item + i * 0, tl.where(broken, float("nan"), 0.0), mask=broken, sem="relaxed")
    columns = tl.max(tl.where(live, x1 - x0 + 1, 0))
    rows = tl.max(tl.where(live, y1 - y0 + 1, 0))
    area = height * width
    picture = out + item.to(tl.int64) * ((1 + CHANNELS) * area)
    for tx in range(0, columns, BX):
        jx = x0[:, None] + tx + tl.arange(0, BX)[None, :]
        across, _low, _high = _masses(jx, x1[:, None], u[:, None], inverse)
        for ty in range(0, rows, BY):
            jy = y0[:, None] + ty + tl.arange(0, BY)[None, :]
            down, _below, _above = _masses(jy, y1[:, None], v[:, None], inverse)
            q = _intensity((w[:, None] * down)[:, :, None] * across[:, None, :], LOGS)
            inside = (live[:, None] & (jy <= y1[:, None]))[:, :, None] & (jx <= x1[:, None])[:, None, :]
            at = jy[:, :, None] * width + jx[:, None, :]
            for c in tl.static_range(1 + CHANNELS):
                if c == 0:
                    value = q
                else:
                    f = tl.load(features + (item.to(tl.int64) * count + i) * CHANNELS + (c - 1), mask=live, other=0.0)
                    value = q * f[:, None, None]
                if FIXED:
                    tl.atomic_add(
                        picture + c * area + at, tl.floor(value * _UNITS + 0.5).to(tl.int64), mask=inside, sem="relaxed"
                    )
                else:
                    tl.atomic_add(picture + c * area + at, value, mask=inside, sem="relaxed")


@kernel
def splat_backward_kernel(
    grads, points, sigma, weights, features, grad_points, grad_sigma, grad_weights, grad_features,
    count, height, width, reach, programs,
    CHANNELS: tl.constexpr, WEIGHTED: tl.constexpr, LOGS: tl.constexpr, SIGMA: tl.constexpr,
    P: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) // programs
    i = (tl.program_id(0) % programs) * P + tl.arange(0, P)
    exists = i < count
    u, v, w, _s, inverse, raw, _broken, live, x0, x1, y0, y1 = _load_points(
        points, sigma, weights, item, i, exists, count, reach, height, width, WEIGHTED
    )
    columns = tl.max(tl.where(live, x1 - x0 + 1, 0))
    rows = tl.max(tl.where(live, y1 - y0 + 1, 0))
    area = height * width
    picture = grads + item.to(tl.int64) * ((1 + CHANNELS) * area)
    offset = item.to(tl.int64) * count + i
    total_u, total_v, total_s, total_w = u * 0.0, u * 0.0, u * 0.0, u * 0.0
    for tx in range(0, columns, BX):
        jx = x0[:, None] + tx + tl.arange(0, BX)[None, :]
        across, low, high = _masses(jx, x1[:, None], u[:, None], inverse)
        across_u, across_s = _slopes(jx, x1[:, None], low, high, inverse)
        for ty in range(0, rows, BY):
            jy = y0[:, None] + ty + tl.arange(0, BY)[None, :]
            down, below, above = _masses(jy, y1[:, None], v[:, None], inverse)
            down_v, down_s = _slopes(jy, y1[:, None], below, above, inverse)
            inside = (live[:, None] & (jy <= y1[:, None]))[:, :, None] & (jx <= x1[:, None])[:, None, :]
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
    tl.store(grad_points + 2 * offset, tl.where(live, w * total_u, 0.0), mask=exists)
    tl.store(grad_points + 2 * offset + 1, tl.where(live, w * total_v, 0.0), mask=exists)
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
def _map(table, f, live):
    a0 = _bounded(tl.load(table + f * 6, mask=live, other=0.0), _MOST)
    a1 = _bounded(tl.load(table + f * 6 + 1, mask=live, other=0.0), _MOST) + 1.0
    a2 = _bounded(tl.load(table + f * 6 + 2, mask=live, other=0.0), _MOST)
    a3 = _bounded(tl.load(table + f * 6 + 3, mask=live, other=0.0), _MOST)
    a4 = _bounded(tl.load(table + f * 6 + 4, mask=live, other=0.0), _MOST)
    a5 = _bounded(tl.load(table + f * 6 + 5, mask=live, other=0.0), _MOST) + 1.0
    return a0, a1, a2, a3, a4, a5


@kernel
def chaos_forward_kernel(
    parameters, choices, start, states, points, functions, chains, steps, burn_in, programs, BLOCK: tl.constexpr
):
    item = (tl.program_id(0) // programs).to(tl.int64)
    c = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    live = c < chains
    table = parameters + item * functions * 6
    x = _bounded(tl.load(start + (item * chains + c) * 2, mask=live, other=0.0), _FAR_STATE)
    y = _bounded(tl.load(start + (item * chains + c) * 2 + 1, mask=live, other=0.0), _FAR_STATE)
    visited = states + (item * (steps + 1) * chains + c) * 2
    tl.store(visited, x, mask=live)
    tl.store(visited + 1, y, mask=live)
    drawn = points + (item * chains + c) * (steps - burn_in) * 2
    for s in range(steps):
        f = tl.load(choices + (item * steps + s) * chains + c, mask=live, other=0)
        f = tl.minimum(tl.maximum(f, 0), functions - 1)
        a0, a1, a2, a3, a4, a5 = _map(table, f, live)
        new_x = _bounded(a0 + a1 * x + a2 * y, _FAR_STATE)
        y = _bounded(a3 + a4 * x + a5 * y, _FAR_STATE)
        x = new_x
        tl.store(visited + (s + 1) * chains * 2, x, mask=live)
        tl.store(visited + (s + 1) * chains * 2 + 1, y, mask=live)
        now = c * 0 + s
        drawing = live & (now >= burn_in)
        tl.store(drawn + (s - burn_in) * 2, x, mask=drawing)
        tl.store(drawn + (s - burn_in) * 2 + 1, y, mask=drawing)


@kernel
def chaos_backward_kernel(
    grads, parameters, choices, start, states, grad_parameters, grad_start,
    functions, chains, steps, burn_in, horizon, programs,
    BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    item = (tl.program_id(0) // programs).to(tl.int64)
    c = (tl.program_id(0) % programs) * BLOCK + tl.arange(0, BLOCK)
    live = c < chains
    table = parameters + item * functions * 6
    visited = states + (item * (steps + 1) * chains + c) * 2
    grad_drawn = grads + (item * chains + c) * (steps - burn_in) * 2
    x_after = tl.load(visited + steps * chains * 2, mask=live, other=0.0)
    y_after = tl.load(visited + steps * chains * 2 + 1, mask=live, other=0.0)
    gx, gy = x_after * 0.0, y_after * 0.0
    slot = tl.arange(0, SLOTS)[None, :]
    # one column per function: a sum over chains at the very end, instead of one atomic addition per step
    t0 = gx[:, None] + slot * 0.0
    t1, t2, t3, t4, t5 = t0, t0, t0, t0, t0
    for back in range(steps):
        s = steps - 1 - back
        f = tl.load(choices + (item * steps + s) * chains + c, mask=live, other=0)
        f = tl.minimum(tl.maximum(f, 0), functions - 1)
        _a0, a1, a2, _a3, a4, a5 = _map(table, f, live)
        now = c * 0 + s
        drawing = live & (now >= burn_in)
        px = gx + tl.load(grad_drawn + (s - burn_in) * 2, mask=drawing, other=0.0)
        py = gy + tl.load(grad_drawn + (s - burn_in) * 2 + 1, mask=drawing, other=0.0)
        px = tl.where(tl.abs(x_after) >= _FAR_STATE, 0.0, _bounded(px, _STEEPEST))
        py = tl.where(tl.abs(y_after) >= _FAR_STATE, 0.0, _bounded(py, _STEEPEST))
        x = tl.load(visited + s * chains * 2, mask=live, other=0.0)
        y = tl.load(visited + s * chains * 2 + 1, mask=live, other=0.0)
        chosen = (f[:, None] == slot) & live[:, None]
        t0 += tl.where(chosen, px[:, None], 0.0)
        t1 += tl.where(chosen, (px * x)[:, None], 0.0)
        t2 += tl.where(chosen, (px * y)[:, None], 0.0)
        t3 += tl.where(chosen, py[:, None], 0.0)
        t4 += tl.where(chosen, (py * x)[:, None], 0.0)
        t5 += tl.where(chosen, (py * y)[:, None], 0.0)
        cut = (now * 0 + horizon > 0) & (now > 0) & (now % tl.maximum(horizon, 1) == 0)
        gx = tl.where(cut, 0.0, a1 * px + a4 * py)
        gy = tl.where(cut, 0.0, a2 * px + a5 * py)
        x_after, y_after = x, y
    there = start + (item * chains + c) * 2
    first_x = tl.load(there, mask=live, other=0.0)
    first_y = tl.load(there + 1, mask=live, other=0.0)
    out = grad_start + (item * chains + c) * 2
    tl.store(out, tl.where(tl.abs(first_x) > _FAR_STATE, 0.0, _bounded(gx, _STEEPEST)), mask=live)
    tl.store(out + 1, tl.where(tl.abs(first_y) > _FAR_STATE, 0.0, _bounded(gy, _STEEPEST)), mask=live)
    row = grad_parameters + (tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)) * 6
    tl.store(row, tl.sum(t0, axis=0))
    tl.store(row + 1, tl.sum(t1, axis=0))
    tl.store(row + 2, tl.sum(t2, axis=0))
    tl.store(row + 3, tl.sum(t3, axis=0))
    tl.store(row + 4, tl.sum(t4, axis=0))
    tl.store(row + 5, tl.sum(t5, axis=0))


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
        self.pull = [self._launch(splat_backward_kernel, "backward", SIGMA=by_sigma) for by_sigma in (False, True)]

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
        points, sigma, weights, features = laid_out(tensors, self.shapes)
        settings, fixed = self.settings, self.settings.deterministic
        kind = torch.int64 if fixed else self.dtype
        total = torch.zeros(self.items, self.layers, settings.height, settings.width, dtype=kind, device=self.device)
        flags = torch.zeros(self.items, dtype=self.dtype, device=self.device)
        self.draw.start(points=points, sigma=sigma, weights=weights, features=features, out=total, flags=flags)
        if fixed:
            total = (total.double() / FIXED_POINT).to(self.dtype)
        total += flags[:, None, None, None]
        return [total.reshape(self.shape)], []

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        g, p, s, w, f = laid_out((*grads, *tensors), (self.flat_shape, *self.shapes))
        grad_points, grad_weights, grad_features = torch.zeros_like(p), torch.zeros_like(w), torch.zeros_like(f)
        grad_sigma = torch.zeros(self.items, self.count if needs[1] else 1, dtype=self.dtype, device=self.device)
        self.pull[needs[1]].start(
            grads=g, points=p, sigma=s, weights=w, features=f,
            grad_points=grad_points, grad_sigma=grad_sigma, grad_weights=grad_weights, grad_features=grad_features,
        )  # fmt: skip
        found = [grad_points, grad_sigma.sum(1), grad_weights, grad_features]
        return [o.reshape(t.shape) for o, t in zip(found, tensors, strict=True)]


def _steps_first(choices: Tensor) -> Tensor:
    """(items, chains, steps) -> (items, steps, chains), so that neighbouring chains read neighbouring memory."""
    return choices.to(torch.int32).mT.contiguous()


class ChaosGamePlan(ChaosPlan):
    """The points of all chains, and back along the states that were saved."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings = self.settings
        sizes = {"functions": self.functions, "chains": self.chains, "steps": self.steps, "burn_in": settings.burn_in}
        programs = -(-self.chains // CHAINS)
        self.draw = Launch(chaos_forward_kernel, self.items * programs, **sizes, programs=programs, BLOCK=CHAINS)
        #: Room for functions that each program has
        self.slots = 1 << max(self.functions - 1, 0).bit_length()
        # Many functions need many registers per chain: fewer chains per program then
        block = max(16, min(CHAINS, 1024 // self.slots))
        self.programs = -(-self.chains // block)
        self.pull = Launch(
            chaos_backward_kernel, self.items * self.programs,
            **sizes, horizon=settings.horizon, programs=self.programs, BLOCK=block, SLOTS=self.slots,
        )  # fmt: skip

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        points, states = self.rooms()
        a, c, x = laid_out(tensors, self.shapes)
        self.draw.start(parameters=a, choices=_steps_first(c), start=x, states=states, points=points)
        return self.results(points, states)

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        parameters, _, start = tensors
        shapes = (self.items, *self.drawn), *self.shapes, (self.items, *self.states)
        g, a, c, x, states = laid_out((*grads, *tensors, *saved), shapes)
        partial = torch.zeros(self.items, self.programs, self.slots, 6, dtype=self.dtype, device=self.device)
        grad_start = torch.zeros_like(x)
        self.pull.start(
            grads=g, parameters=a, choices=_steps_first(c), start=x, states=states,
            grad_parameters=partial, grad_start=grad_start,
        )  # fmt: skip
        total = partial.sum(1)[:, : self.functions].clamp(-FAR_GRADIENT, FAR_GRADIENT)
        total = torch.where(a.abs() > FAR_PARAMETER, 0.0, total)
        return [total.reshape(parameters.shape), None, grad_start.reshape(start.shape)]

"""The smooth raster on the GPU: a program takes a few points and adds their windows, tile by tile, to the picture.

Forward, each tile is one atomic addition per pixel, along rows so that neighbours share a memory sector. Float sums
then depend on the order of arrival in the last bits; with `deterministic` they are 64-bit integers (in units of
2^-32), whose sum has no order. Backward, every point gathers: no atomics, always reproducible.
"""

from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel, log_complement, short_of_one

from ...reference import FAR_PIXELS, LEAST_SIGMA

#: Fixed-point units of the deterministic sums: finer than float32 at 1, and sums up to 2^31 fit.
FIXED_POINT = 2.0**32
_UNITS = tl.constexpr(FIXED_POINT)
_FAR, _LEAST = tl.constexpr(FAR_PIXELS), tl.constexpr(LEAST_SIGMA)


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
    u = tl.where(u != u, -_FAR, tl.minimum(tl.maximum(u, -_FAR), _FAR))
    v = tl.where(v != v, -_FAR, tl.minimum(tl.maximum(v, -_FAR), _FAR))
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

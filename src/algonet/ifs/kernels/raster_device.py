"""The smooth raster on the CPU: each point adds the outer product of two short vectors to its window of the picture.

Points are cut into blocks whose number depends on the input's size alone. Each block adds to a picture of its own and
the pictures are summed in order, so the result is the same for any number of threads. The backward pass gathers.
Inner loops run over whole vectors of `LANES` numbers (a constant trip count would be unrolled into scalars instead);
pictures are padded on the right so that the last vector never leaves its row.

A template: what follows the marker is loaded once with `real` = float32 and once with float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32
from numba import float32 as real

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import exp32, log32
from algonet.ifs.reference import FAR_PIXELS, LEAST_SIGMA

from .numba import LANES

SINGLE = True

# --- template ---
_OPTIONS = {"fastmath": {"contract", "reassoc"}, "error_model": "numpy", "nogil": True}


@njit(**_OPTIONS)
def _tail32(e):
    """1 - Phi(|e|) for the standard normal: absolute error below 1e-7, and relative below 1e-5 in the tails."""
    a = abs(float32(e)) * float32(0.7071067811865476)
    t = float32(1.0) / (float32(1.0) + float32(0.5) * a)
    # erfc(a) = t exp(polynomial(t) - a^2), fitted at Chebyshev nodes of t: the relative error stays small in the tails
    p = float32(0.1772993)
    p = p * t - float32(0.85304016)
    p = p * t + float32(1.5511978)
    p = p * t - float32(1.205038)
    p = p * t + float32(0.32536596)
    p = p * t - float32(0.20516235)
    p = p * t + float32(0.10134885)
    p = p * t + float32(0.3734785)
    p = p * t + float32(1.0000632)
    p = p * t - float32(1.2655131)
    return float32(0.5) * t * exp32(p - a * a)


@njit(**_OPTIONS)
def _tail64(e):
    return 0.5 * math.erfc(abs(e) * 0.7071067811865476)


@njit(**_OPTIONS)
def _log32(p):
    """-log(1 - p) for p below one half, in float32: 2 atanh(p / (2 - p)), which keeps the digits of small p."""
    s = p / (float32(2.0) - p)
    z = s * s
    q = float32(1.0 / 13.0)
    q = q * z + float32(1.0 / 11.0)
    q = q * z + float32(1.0 / 9.0)
    q = q * z + float32(1.0 / 7.0)
    q = q * z + float32(1.0 / 5.0)
    q = q * z + float32(1.0 / 3.0)
    return float32(2.0) * (s + s * z * q)


@njit(**_OPTIONS)
def _far_log32(p):
    """-log(1 - p) up to one rounding step below 1."""
    small = _log32(min(p, float32(0.5)))
    large = -log32(float32(1.0) - min(p, float32(1.0)) * float32(1.0 - 1.1920929e-07))
    return small if p < float32(0.5) else large


@njit(**_OPTIONS)
def _log64(p):
    return -math.log1p(-min(p, 1.0) * (1.0 - 2.220446049250313e-16))


@njit(**_OPTIONS)
def _span(count):
    """`count` rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


tail, exp = (_tail32, exp32) if SINGLE else (_tail64, math.exp)
near_log, far_log = (_log32, _far_log32) if SINGLE else (_log64, _log64)
one, zero, half = real(1.0), real(0.0), real(0.5)
#: One rounding step below 1.
largest = real(1.0 - (1.1920929e-07 if SINGLE else 2.220446049250313e-16))
far, least = real(FAR_PIXELS), real(LEAST_SIGMA)


@njit(**_OPTIONS)
def bell(e):
    """The standard normal density."""
    return real(0.3989422804014327) * exp(real(-0.5) * e * e)


@njit(**_OPTIONS)
def window(u, reach, size):
    """First pixel and number of pixels within `reach` of u; none if the point lies too far outside."""
    low, high = u - reach, u + reach
    if not (high >= zero and low < real(size)):
        return 0, 0
    first = int(max(np.floor(low), zero))
    last = min(int(min(np.floor(high), real(size - 1))), size - 1)
    return first, last - first + 1


@njit(**_OPTIONS)
def masses(u, inverse, first, count, lane, edges, tails, out):
    """Mass in each pixel of the window, zeros up to a full vector; returns the largest."""
    span, base, limit = _span(count + 1), real(first) - u, real(count)
    for k in range(span):
        e = (base + lane[k]) * inverse
        edges[k] = e
        tails[k] = tail(e)
    peak = zero
    for k in range(span):
        t0, t1 = tails[k], tails[k + 1]
        m = t0 - t1 if edges[k] > zero else (t1 - t0 if edges[k + 1] < zero else one - t0 - t1)
        m = m if lane[k] < limit else zero
        out[k] = m
        peak = max(peak, m)
    return peak


@njit(**_OPTIONS)
def slopes(inverse, count, lane, edges, bells, d_position, d_sigma):
    """Derivatives of the masses by position and by sigma, from the edges that `masses` left."""
    span, limit = _span(count + 1), real(count)
    for k in range(span):
        bells[k] = bell(edges[k])
    for k in range(span):
        b0, b1 = bells[k], bells[k + 1]
        inside = lane[k] < limit
        d_position[k] = (b0 - b1) * inverse if inside else zero
        d_sigma[k] = (edges[k] * b0 - edges[k + 1] * b1) * inverse if inside else zero


@njit(**_OPTIONS)
def add_row(row, value, across, span, logs, crowded, buffer, keep):
    """Add one row of a point's intensities to its picture; `keep` leaves them in `buffer`."""
    if not logs:
        for k in range(span):
            row[k] += value * across[k]
    elif crowded:
        for k in range(span):
            row[k] += far_log(value * across[k])
    else:
        for k in range(span):
            row[k] += near_log(value * across[k])
    if keep:
        for k in range(span):
            q = value * across[k]
            buffer[k] = far_log(q) if logs else q


@njit(**_OPTIONS, cache=True)
def forward(points, sigma, weights, features, first, last, width, reach, logs, picture):
    """Add points[first:last] to `picture` (1 + C, H, padded W). Returns whether a NaN was met."""
    height, channels = picture.shape[1], features.shape[1]
    longest = max(height, width) + 2 * LANES
    scratch = np.zeros((6, longest), points.dtype)
    across, down, edges = scratch[0], scratch[1], scratch[2]
    tails, buffer, lane = scratch[3], scratch[4], scratch[5]
    for k in range(longest):
        lane[k] = real(k)
    sigma = max(sigma, least)
    inverse, radius = one / sigma, reach * sigma
    weighted, broken = weights.shape[0] > 0, sigma != sigma
    for i in range(first, last):
        u, v = points[i, 0], points[i, 1]
        weight = weights[i] if weighted else one
        if u != u or v != v or weight != weight:
            broken = True
            continue
        x, columns = window(u, radius, width)
        y, rows = window(v, radius, height)
        if columns == 0 or rows == 0:
            continue
        peak = masses(u, inverse, x, columns, lane, edges, tails, across)
        peak *= abs(weight) * masses(v, inverse, y, rows, lane, edges, tails, down)
        span = _span(columns)
        for j in range(rows):
            row = picture[0, y + j, x : x + span]
            add_row(row, weight * down[j], across, span, logs, peak >= half, buffer, channels > 0)
            for c in range(channels):
                row, f = picture[1 + c, y + j, x : x + span], features[i, c]
                for k in range(span):
                    row[k] += buffer[k] * f
    return broken


@njit(**_OPTIONS, cache=True)
def backward(
    grads, points, sigma, weights, features, first, last, width, reach, logs, grad_points, grad_weights, grad_features
):
    """Gradients of points[first:last] from `grads` (1 + C, H, padded W); returns their part of sigma's gradient."""
    height, channels = grads.shape[1], features.shape[1]
    longest = max(height, width) + 2 * LANES
    scratch = np.zeros((11, longest), points.dtype)
    edges, tails, bells = scratch[0], scratch[1], scratch[2]
    across, across_u, across_s = scratch[3], scratch[4], scratch[5]
    down, down_v, down_s = scratch[6], scratch[7], scratch[8]
    grad_q, lane = scratch[9], scratch[10]
    for k in range(longest):
        lane[k] = real(k)
    free = sigma >= least
    sigma = max(sigma, least)
    inverse, radius = one / sigma, reach * sigma
    weighted, grad_sigma = weights.shape[0] > 0, zero
    for i in range(first, last):
        u, v = points[i, 0], points[i, 1]
        weight = weights[i] if weighted else one
        x, columns = window(u, radius, width)
        y, rows = window(v, radius, height)
        if columns == 0 or rows == 0 or weight != weight:
            continue
        masses(u, inverse, x, columns, lane, edges, tails, across)
        slopes(inverse, columns, lane, edges, bells, across_u, across_s)
        masses(v, inverse, y, rows, lane, edges, tails, down)
        slopes(inverse, rows, lane, edges, bells, down_v, down_s)
        total_u, total_v, total_s, total_w = zero, zero, zero, zero
        span = _span(columns)
        for j in range(rows):
            value = weight * down[j]
            row = grads[0, y + j, x : x + span]
            for k in range(span):
                grad_q[k] = row[k]
            for c in range(channels):
                row, f = grads[1 + c, y + j, x : x + span], features[i, c]
                total_f = zero
                for k in range(span):
                    p = value * across[k]
                    q = far_log(p) if logs else p
                    grad_q[k] += f * row[k]
                    total_f += q * row[k]
                grad_features[i, c] += total_f
            if logs:
                for k in range(span):
                    p = value * across[k]
                    grad_q[k] = grad_q[k] / (one - min(p, one) * largest) if p <= one else zero
            sum_a, sum_u, sum_s = zero, zero, zero
            for k in range(span):
                g = grad_q[k]
                sum_a += g * across[k]
                sum_u += g * across_u[k]
                sum_s += g * across_s[k]
            total_u += value * sum_u
            total_v += weight * down_v[j] * sum_a
            total_s += value * sum_s + weight * down_s[j] * sum_a
            total_w += down[j] * sum_a
        grad_points[i, 0] = total_u if abs(u) <= far else zero
        grad_points[i, 1] = total_v if abs(v) <= far else zero
        if weighted:
            grad_weights[i] = total_w
        grad_sigma += total_s
    return grad_sigma if free else zero

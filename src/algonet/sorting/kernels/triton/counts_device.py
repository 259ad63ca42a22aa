"""Template of the Triton kernels of smooth counts and their inverse; `source.py` puts a sigmoid's `gate` before it.

Weights are (rows * channels, n); points are shared by the channels of a row. See `../../counts.py`.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel


@triton.jit
def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


# --- template ---


@triton.jit
def pairs(y, x_ptr, w_ptr, n, PRECISE: tl.constexpr, ITEMS: tl.constexpr):
    """(sum of w r(y - x), sum of w r'(y - x)) for a block of points."""
    value, slope = tl.zeros_like(y), tl.zeros_like(y)
    for start in range(0, n, ITEMS):
        j = start + tl.arange(0, ITEMS)
        x = tl.load(x_ptr + j, mask=j < n, other=0.0)
        w = tl.load(w_ptr + j, mask=j < n, other=0.0)
        z = y[:, None] - x[None, :]
        z = tl.where(z > 1e18, 1e18, tl.where(z < -1e18, -1e18, z))
        if not PRECISE:
            z = z.to(tl.float32)
        v, r = gate(z)
        value += tl.sum(v.to(tl.float64) * w[None, :], 1)
        slope += tl.sum(tl.where(tl.abs(z) < 1e18, r, 0.0).to(tl.float64) * w[None, :], 1)
    return value, slope


@triton.jit
def read(field_ptr, u, size):
    """(value, slope by u) of the spline through a field."""
    i = tl.minimum(tl.maximum(tl.floor(u), 0.0), size - 6.0)
    t = u - i
    place = field_ptr + i.to(tl.int64)
    a, b, c = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    d, e, f = tl.load(place + 3), tl.load(place + 4), tl.load(place + 5)
    c0 = (a + 26.0 * b + 66.0 * c + 26.0 * d + e) / 120.0
    c1 = (e - a + 10.0 * (d - b)) / 24.0
    c2 = (a + e + 2.0 * (b + d) - 6.0 * c) / 12.0
    c3 = (e - a + 2.0 * (b - d)) / 12.0
    c4 = (a + e - 4.0 * (b + d) + 6.0 * c) / 24.0
    c5 = (f - a + 5.0 * (b - e) + 10.0 * (d - c)) / 120.0
    value = c0 + t * (c1 + t * (c2 + t * (c3 + t * (c4 + t * c5))))
    return value, c1 + t * (2.0 * c2 + t * (3.0 * c3 + t * (4.0 * c4 + t * 5.0 * c5)))


@triton.jit
def evaluate(
    y, x_ptr, w_ptr, field_ptr, least, n, size, per, GRID: tl.constexpr, PRECISE: tl.constexpr, ITEMS: tl.constexpr
):
    if GRID:
        value, slope = read(field_ptr, (y - least) * per, size)
        slope = slope * per
    else:
        value, slope = pairs(y, x_ptr, w_ptr, n, PRECISE, ITEMS)
    return value, slope


@kernel
def spread_kernel(x_ptr, w_ptr, least_ptr, grid_ptr, n, channels, size, per, BLOCK: tl.constexpr):
    """Puts items on the grid by quintic B-splines."""
    blocks = tl.cdiv(n, BLOCK)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    row = line // channels
    j = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    live = j < n
    u = (tl.load(x_ptr + row * n + j, mask=live, other=0.0) - tl.load(least_ptr + row)) * per
    u = tl.where(live, u, 0.0)
    i = tl.minimum(tl.maximum(tl.floor(u), 0.0), size - 6.0)
    t = u - i
    r = 1.0 - t
    w = tl.load(w_ptr + line * n + j, mask=live, other=0.0) / 120.0
    place = grid_ptr + line * size + i.to(tl.int64)
    tl.atomic_add(place, w * r * r * r * r * r, mask=live)
    tl.atomic_add(place + 1, w * (26.0 + t * (-50.0 + t * (20.0 + t * (20.0 + t * (-20.0 + 5.0 * t))))), mask=live)
    tl.atomic_add(place + 2, w * (66.0 + t * t * (-60.0 + t * t * (30.0 - 10.0 * t))), mask=live)
    tl.atomic_add(place + 3, w * (66.0 + r * r * (-60.0 + r * r * (30.0 - 10.0 * r))), mask=live)
    tl.atomic_add(place + 4, w * (1.0 + t * (5.0 + t * (10.0 + t * (10.0 + t * (5.0 - 5.0 * t))))), mask=live)
    tl.atomic_add(place + 5, w * t * t * t * t * t, mask=live)


@kernel
def counts_kernel(
    y_ptr, x_ptr, w_ptr, field_ptr, least_ptr, value_ptr, slope_ptr, m, n, channels, size, per,
    GRID: tl.constexpr, PRECISE: tl.constexpr, BLOCK: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """S and S' at finite points, (rows * channels, m)."""
    blocks = tl.cdiv(m, BLOCK)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    row = line // channels
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    least = tl.load(least_ptr + row)
    y = tl.load(y_ptr + row * m + i, mask=i < m, other=0.0)
    y = tl.where(i < m, y, least)
    value, slope = evaluate(
        y, x_ptr + row * n, w_ptr + line * n, field_ptr + line * size, least, n, size, per, GRID, PRECISE, ITEMS
    )
    tl.store(value_ptr + line * m + i, value, mask=i < m)
    tl.store(slope_ptr + line * m + i, slope, mask=i < m)


@kernel
def roots_kernel(
    x_ptr, w_ptr, k_ptr, low_ptr, high_ptr, field_ptr, least_ptr, y_ptr, slope_ptr, m, n, size, per,
    GRID: tl.constexpr, PRECISE: tl.constexpr, BLOCK: tl.constexpr, ITEMS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Points where S is k, by Newton's method between a low and a high end, and halving where it leaves them."""
    blocks = tl.cdiv(m, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    least = tl.load(least_ptr + row)
    k = tl.load(k_ptr + row * m + i, mask=i < m, other=0.0)
    low, high = tl.load(low_ptr + row) + 0.0 * k, tl.load(high_ptr + row) + 0.0 * k
    y = 0.5 * low + 0.5 * high
    slope, moving, turn = tl.zeros_like(y), 1, 0
    while (moving > 0) & (turn < ROUNDS):
        value, slope = evaluate(
            y, x_ptr + row * n, w_ptr + row * n, field_ptr + row * size, least, n, size, per, GRID, PRECISE, ITEMS
        )
        error = value - k
        low, high = tl.where(error > 0, low, y), tl.where(error > 0, y, high)
        new = y - error / tl.where(slope > 0, slope, 1.0)
        # Every third step halves: Newton alone may creep along a tail
        good = (slope > 0) & (new > low) & (new < high) & (turn % 3 != 2)
        close = (slope > 0) & (tl.abs(error) <= (1e-14 if PRECISE else 1e-9) * slope)
        new = tl.where(close, y, tl.where(good, new, 0.5 * low + 0.5 * high))
        moving = tl.max(((tl.abs(new - y) > 1e-15 * tl.abs(y)) & (i < m)).to(tl.int32), 0)
        y = new
        turn += 1
    tl.store(y_ptr + row * m + i, y, mask=i < m)
    tl.store(slope_ptr + row * m + i, slope, mask=i < m)

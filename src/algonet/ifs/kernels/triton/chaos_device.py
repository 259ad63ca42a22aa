"""The chaos game on the GPU: a program steps a block of chains in registers, and walks them back for the gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from ...reference import FAR_GRADIENT, FAR_PARAMETER, FAR_STATE

_FAR = tl.constexpr(FAR_STATE)
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
    x = _bounded(tl.load(start + (item * chains + c) * 2, mask=live, other=0.0), _FAR)
    y = _bounded(tl.load(start + (item * chains + c) * 2 + 1, mask=live, other=0.0), _FAR)
    visited = states + (item * (steps + 1) * chains + c) * 2
    tl.store(visited, x, mask=live)
    tl.store(visited + 1, y, mask=live)
    drawn = points + (item * chains + c) * (steps - burn_in) * 2
    for s in range(steps):
        f = tl.load(choices + (item * steps + s) * chains + c, mask=live, other=0)
        f = tl.minimum(tl.maximum(f, 0), functions - 1)
        a0, a1, a2, a3, a4, a5 = _map(table, f, live)
        new_x = _bounded(a0 + a1 * x + a2 * y, _FAR)
        y = _bounded(a3 + a4 * x + a5 * y, _FAR)
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
        px = tl.where(tl.abs(x_after) >= _FAR, 0.0, _bounded(px, _STEEPEST))
        py = tl.where(tl.abs(y_after) >= _FAR, 0.0, _bounded(py, _STEEPEST))
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
    tl.store(out, tl.where(tl.abs(first_x) > _FAR, 0.0, _bounded(gx, _STEEPEST)), mask=live)
    tl.store(out + 1, tl.where(tl.abs(first_y) > _FAR, 0.0, _bounded(gy, _STEEPEST)), mask=live)
    row = grad_parameters + (tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)) * 6
    tl.store(row, tl.sum(t0, axis=0))
    tl.store(row + 1, tl.sum(t1, axis=0))
    tl.store(row + 2, tl.sum(t2, axis=0))
    tl.store(row + 3, tl.sum(t3, axis=0))
    tl.store(row + 4, tl.sum(t4, axis=0))
    tl.store(row + 5, tl.sum(t5, axis=0))

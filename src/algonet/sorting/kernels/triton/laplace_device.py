"""Triton kernels of the Laplace sigmoid's soft counts: scans over sorted rows, in float64.

A program takes BLOCK places of a sorted row. Going up, A_i = (A_{i-1} + w_{i-1}) exp(-s gap) sums the exponentials of all items
before, and B those of all behind: both are chains of a -> a f + b, which `associative_scan` runs in parallel. Rows of several
parts first find what each part does to a chain (`parts_kernel`); every program then puts those before and behind it together.
Infinite items are crisp: a chain breaks where one is a neighbour.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
# ruff: noqa: RUF059 (Triton's functions return all of their results)
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

#: Numbers that `parts_kernel` finds of a part: factor and sum of the chain up, of that down, and the weights of all items,
#: of those at -inf and of those at inf.
FOUND = tl.constexpr(7)


@triton.jit
def chained(f, a, g, b):
    """One link after another: what was a becomes a g + b."""
    return f * g, a * g + b


@triton.jit
def load_places(ordered_ptr, order_ptr, w_ptr, i, n):
    """(value, weight, whether it is finite, index in the unsorted row) at the places i; 0 and not finite beyond the row."""
    live = (i >= 0) & (i < n)
    value = tl.load(ordered_ptr + i, mask=live, other=float("inf")).to(tl.float64)
    index = tl.load(order_ptr + i, mask=live, other=0)
    weight = tl.load(w_ptr + index, mask=live, other=0.0).to(tl.float64)
    return value, weight, live & (tl.abs(value) < float("inf")), index


@triton.jit
def link(value, finite, neighbour, weight, neighbour_finite, s):
    """(factor, sum) of the link from a neighbour with this weight."""
    joined = finite & neighbour_finite
    gap = tl.where(joined, tl.abs(value - neighbour), 0.0)
    fall = tl.where(joined, tl.exp(-s * gap), 0.0)
    return fall, fall * weight


@triton.jit
def both_chains(ordered_ptr, order_ptr, w_ptr, s, i, n):
    """(factor, sum) up to each place from the part's first, and down to it from the part's last."""
    value, weight, finite, index = load_places(ordered_ptr, order_ptr, w_ptr, i, n)
    lower, lower_weight, lower_finite, lower_index = load_places(ordered_ptr, order_ptr, w_ptr, i - 1, n)
    upper, upper_weight, upper_finite, upper_index = load_places(ordered_ptr, order_ptr, w_ptr, i + 1, n)
    up = link(value, finite, lower, lower_weight, lower_finite, s)
    down = link(value, finite, upper, upper_weight, upper_finite, s)
    up_factor, up_sum = tl.associative_scan(up, 0, chained)
    down_factor, down_sum = tl.associative_scan(down, 0, chained, reverse=True)
    return up_factor, up_sum, down_factor, down_sum


@triton.jit
def carried(part_ptr, part, parts, PARTS: tl.constexpr):
    """What the chains bring into this part, from below and from above."""
    p = tl.arange(0, PARTS)
    place = part_ptr + p * FOUND
    live = p < parts
    factor = tl.where(p < part, tl.load(place, mask=live, other=1.0), 1.0)
    total = tl.where(p < part, tl.load(place + 1, mask=live, other=0.0), 0.0)
    factor, total = tl.associative_scan((factor, total), 0, chained)
    below = tl.sum(tl.where(p == PARTS - 1, total, 0.0), 0)
    factor = tl.where(p > part, tl.load(place + 2, mask=live, other=1.0), 1.0)
    total = tl.where(p > part, tl.load(place + 3, mask=live, other=0.0), 0.0)
    factor, total = tl.associative_scan((factor, total), 0, chained, reverse=True)
    return below, tl.sum(tl.where(p == 0, total, 0.0), 0)


@kernel
def parts_kernel(ordered_ptr, order_ptr, w_ptr, steepness_ptr, part_ptr, n, parts, BLOCK: tl.constexpr):
    """What each part of each row does to the chains, and its weights."""
    pid = tl.program_id(0)
    base = (pid // parts).to(tl.int64) * n
    ordered_ptr, order_ptr, w_ptr = ordered_ptr + base, order_ptr + base, w_ptr + base
    lane = tl.arange(0, BLOCK)
    i = pid % parts * BLOCK + lane
    s = tl.load(steepness_ptr).to(tl.float64)
    up_factor, up_sum, down_factor, down_sum = both_chains(ordered_ptr, order_ptr, w_ptr, s, i, n)
    value, weight, finite, index = load_places(ordered_ptr, order_ptr, w_ptr, i, n)
    part_ptr += pid.to(tl.int64) * FOUND
    tl.store(part_ptr, tl.sum(tl.where(lane == BLOCK - 1, up_factor, 0.0), 0))
    tl.store(part_ptr + 1, tl.sum(tl.where(lane == BLOCK - 1, up_sum, 0.0), 0))
    tl.store(part_ptr + 2, tl.sum(tl.where(lane == 0, down_factor, 0.0), 0))
    tl.store(part_ptr + 3, tl.sum(tl.where(lane == 0, down_sum, 0.0), 0))
    tl.store(part_ptr + 4, tl.sum(weight, 0))
    tl.store(part_ptr + 5, tl.sum(tl.where(value == float("-inf"), weight, 0.0), 0))
    tl.store(part_ptr + 6, tl.sum(tl.where(value == float("inf"), weight, 0.0), 0))


@kernel
def counts_kernel(
    ordered_ptr, order_ptr, w_ptr, steepness_ptr, part_ptr, out_ptr, near_ptr, n, parts,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The counts, and A + B of each place, which is what the gradient is made of."""
    pid = tl.program_id(0)
    base = (pid // parts).to(tl.int64) * n
    ordered_ptr, order_ptr, w_ptr = ordered_ptr + base, order_ptr + base, w_ptr + base
    part = pid % parts
    i = part * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(steepness_ptr).to(tl.float64)
    up_factor, up, down_factor, down = both_chains(ordered_ptr, order_ptr, w_ptr, s, i, n)
    value, weight, finite, index = load_places(ordered_ptr, order_ptr, w_ptr, i, n)
    least, most = value == float("-inf"), value == float("inf")
    if PARTS > 1:
        part_ptr += (pid // parts).to(tl.int64) * parts * FOUND
        below, above = carried(part_ptr, part, parts, PARTS)
        up += up_factor * below
        down += down_factor * above
        p = tl.arange(0, PARTS)
        weights = tl.load(part_ptr + p * FOUND + 4, mask=p < parts, other=0.0)
        before, total = tl.sum(tl.where(p < part, weights, 0.0), 0), tl.sum(weights, 0)
        low = tl.sum(tl.load(part_ptr + p * FOUND + 5, mask=p < parts, other=0.0), 0)
        high = tl.sum(tl.load(part_ptr + p * FOUND + 6, mask=p < parts, other=0.0), 0)
    else:
        before, total = 0.0, tl.sum(weight, 0)
        low, high = tl.sum(tl.where(least, weight, 0.0), 0), tl.sum(tl.where(most, weight, 0.0), 0)
    count = before + tl.cumsum(weight, 0) - weight + 0.5 * (down - up)
    # Infinite items tie with their equals: each has half of the others
    count = tl.where(least, 0.5 * (low - weight), tl.where(most, total - 0.5 * (high + weight), count))
    last = tl.load(ordered_ptr + n - 1)
    count = tl.where(last == last, count, float("nan"))
    tl.store(out_ptr + base + index, count.to(out_ptr.dtype.element_ty), mask=i < n)
    tl.store(near_ptr + base + i, up + down, mask=i < n)


@kernel
def slopes_kernel(
    ordered_ptr, order_ptr, w_ptr, grad_ptr, near_ptr, steepness_ptr, part_ptr, grad_x_ptr, grad_s_ptr, n, parts,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """s / 2 (g_i near_i(w) - w_i near_i(g)), near = A + B; by steepness the sum of x_i times that, over s, of each part."""
    pid = tl.program_id(0)
    base = (pid // parts).to(tl.int64) * n
    ordered_ptr, order_ptr, w_ptr, grad_ptr = ordered_ptr + base, order_ptr + base, w_ptr + base, grad_ptr + base
    part = pid % parts
    i = part * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(steepness_ptr).to(tl.float64)
    up_factor, up, down_factor, down = both_chains(ordered_ptr, order_ptr, grad_ptr, s, i, n)
    if PARTS > 1:
        below, above = carried(part_ptr + (pid // parts).to(tl.int64) * parts * FOUND, part, parts, PARTS)
        up += up_factor * below
        down += down_factor * above
    value, grad, finite, index = load_places(ordered_ptr, order_ptr, grad_ptr, i, n)
    weight = tl.load(w_ptr + index, mask=i < n, other=0.0).to(tl.float64)
    near = tl.load(near_ptr + base + i, mask=i < n, other=0.0)
    last = tl.load(ordered_ptr + n - 1)
    pull = tl.where(finite, 0.5 * (grad * near - weight * (up + down)), 0.0)
    pull = tl.where(last == last, pull, 0.0)
    tl.store(grad_x_ptr + base + index, (s * pull).to(grad_x_ptr.dtype.element_ty), mask=i < n)
    # The slopes of a row sum to 0: seen from its middle, items lose no digits
    middle = tl.load(ordered_ptr + n // 2).to(tl.float64)
    away = tl.where(pull != 0, value - tl.where(tl.abs(middle) < float("inf"), middle, 0.0), 0.0)
    tl.store(grad_s_ptr + pid, tl.sum(away * pull, 0))

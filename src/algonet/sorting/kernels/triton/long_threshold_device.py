"""Template of the kernels of memberships by threshold for few long rows, after `threshold_device.py`.

A launch for each step of the search, in which every program measures C thresholds on its part of a row; nothing waits for
another program but the end of a launch.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
# ruff: noqa: RUF059 (Triton's functions return all of their results)
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .threshold_device import (
    first_guess,
    geometric,
    load_items,
    member,
    newton,
    scaled,
    split,
    tail,
    weights_at,
)

# --- template ---
#: Numbers of a row's state between launches, and of what a program found out about its part.
STATE = tl.constexpr(16)
#: The bracket, the best threshold, the next guess and the spread around it, whether the search is done.
LOW, HIGH, BEST = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NEXT, SPREAD, DONE = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
#: Finite items, and infinite ones above and below.
COUNT, ABOVE, BELOW = tl.constexpr(6), tl.constexpr(7), tl.constexpr(8)
#: While a row is surveyed: items that are NaN, extremes, sums.
SPOILED, SMALLEST, LARGEST = tl.constexpr(9), tl.constexpr(10), tl.constexpr(11)
SUM, SQUARES = tl.constexpr(12), tl.constexpr(13)
#: While it is searched: what is over k at the low end, and under it at the high end.
OVER, UNDER = tl.constexpr(14), tl.constexpr(15)


@kernel
def survey_kernel(
    x_ptr, mask_ptr, part_ptr, n, parts, chunk,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What there is in each part of each row: counts, extremes, sums."""
    pid = tl.program_id(0)
    row, part = (pid // parts).to(tl.int64), pid % parts
    lane = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.int32)
    above, below, spoiled = count, count, count
    total = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    square, least, most = total, total + float("inf"), total - float("inf")
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, n), BLOCK):
        live = (start + lane < n) & (start + lane < (part + 1) * chunk)
        x, present, finite = load_items(x_ptr, mask_ptr, row * n + start + lane, live, MASKED)
        y = tl.where(finite, x, 0.0).to(x.dtype)
        count += finite.to(tl.int32)
        above += (present & (x - x != 0) & (x > 0)).to(tl.int32)
        below += (present & (x - x != 0) & (x < 0)).to(tl.int32)
        spoiled += (present & (x != x)).to(tl.int32)
        total += y
        square += y * y
        least = tl.minimum(least, tl.where(finite, x, float("inf")))
        most = tl.maximum(most, tl.where(finite, x, float("-inf")))
    part_ptr += pid.to(tl.int64) * STATE
    tl.store(part_ptr + COUNT, tl.sum(count, 0).to(tl.float64))
    tl.store(part_ptr + ABOVE, tl.sum(above, 0).to(tl.float64))
    tl.store(part_ptr + BELOW, tl.sum(below, 0).to(tl.float64))
    tl.store(part_ptr + SPOILED, tl.sum(spoiled, 0).to(tl.float64))
    tl.store(part_ptr + SMALLEST, tl.min(least, 0).to(tl.float64))
    tl.store(part_ptr + LARGEST, tl.max(most, 0).to(tl.float64))
    tl.store(part_ptr + SUM, tl.sum(total, 0).to(tl.float64))
    tl.store(part_ptr + SQUARES, tl.sum(square, 0).to(tl.float64))


@kernel
def gather_kernel(steepness_ptr, k_ptr, part_ptr, state_ptr, k_step, reach, parts, PARTS: tl.constexpr):
    """The state of a row before the search, from what `survey_kernel` found."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, PARTS)
    part_ptr += (row * parts + p) * STATE
    live = p < parts
    s = tl.maximum(tl.load(steepness_ptr).to(tl.float64), 1e-30)
    k = tl.load(k_ptr + row * k_step).to(tl.float64)
    count = tl.sum(tl.load(part_ptr + COUNT, mask=live, other=0.0), 0)
    above = tl.sum(tl.load(part_ptr + ABOVE, mask=live, other=0.0), 0)
    below = tl.sum(tl.load(part_ptr + BELOW, mask=live, other=0.0), 0)
    spoiled = tl.sum(tl.load(part_ptr + SPOILED, mask=live, other=0.0), 0)
    least = tl.min(tl.load(part_ptr + SMALLEST, mask=live, other=1e308), 0)
    most = tl.max(tl.load(part_ptr + LARGEST, mask=live, other=-1e308), 0)
    total = tl.sum(tl.load(part_ptr + SUM, mask=live, other=0.0), 0)
    square = tl.sum(tl.load(part_ptr + SQUARES, mask=live, other=0.0), 0)
    wanted = k - above
    interior = (wanted > 0) & (wanted < count) & (spoiled == 0) & (k == k)
    m, kf = tl.where(interior, count, 2.0), tl.where(interior, wanted, 1.0)
    least, most = tl.where(interior, least, 0.0), tl.where(interior, most, 0.0)
    low, high = least - reach / s - 1e-12 * tl.abs(least), most + reach / s + 1e-12 * tl.abs(most)
    b = first_guess(least, most, total, square, m, tl.log(kf / (m - kf)))
    b = tl.where((b > low) & (b < high), b, 0.5 * low + 0.5 * high)
    edge = tl.where(wanted <= 0, float("inf"), float("-inf")).to(tl.float64)
    b = tl.where(interior, b, tl.where((spoiled > 0) | (k != k), float("nan"), edge))
    state_ptr += row * STATE
    tl.store(state_ptr + LOW, low)
    tl.store(state_ptr + HIGH, high)
    tl.store(state_ptr + BEST, b)
    tl.store(state_ptr + NEXT, b)
    tl.store(state_ptr + SPREAD, (high - low) * 0.02)
    tl.store(state_ptr + DONE, tl.where(interior, 0.0, 1.0))
    tl.store(state_ptr + COUNT, count)
    tl.store(state_ptr + ABOVE, above)
    tl.store(state_ptr + BELOW, below)
    tl.store(state_ptr + OVER, m)
    tl.store(state_ptr + UNDER, kf)


@triton.jit
def candidates(low, high, guess, spread, C: tl.constexpr):
    """C thresholds to try: the guess and its neighbours, and others spread over the bracket so that it always shrinks."""
    i = tl.arange(0, C)
    even = low + (high - low) * ((i - 3).to(tl.float64) / (C - 4 + 0.0))
    tried = tl.where(i == 0, guess, tl.where(i == 1, guess - spread, tl.where(i == 2, guess + spread, even)))
    tried = tl.where(i == 3, geometric(low, high), tried)
    middle = low + (high - low) * ((i + 1).to(tl.float64) / (C + 1.0))
    return tl.where((tried > low) & (tried < high), tried, middle)


@kernel
def search_kernel(
    x_ptr, mask_ptr, steepness_ptr, k_ptr, part_ptr, state_ptr, rows, n, k_step, tolerance, rounding, parts, chunk, turn,
    MASKED: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of the search: from the sums at the last candidates to a narrower bracket, and sums at the next.

    Every program of a row reads what all of them found in the step before and comes to the same state; the first writes it.
    """
    pid = tl.program_id(0)
    row, part = (pid // parts).to(tl.int64), pid % parts
    before = state_ptr + ((turn - 1).to(tl.int64) * rows + row) * STATE
    after = state_ptr + (turn.to(tl.int64) * rows + row) * STATE
    low, high, b = tl.load(before + LOW), tl.load(before + HIGH), tl.load(before + BEST)
    guess, spread, done = tl.load(before + NEXT), tl.load(before + SPREAD), tl.load(before + DONE)
    count, above, below = tl.load(before + COUNT), tl.load(before + ABOVE), tl.load(before + BELOW)
    over, under = tl.load(before + OVER), tl.load(before + UNDER)
    s = tl.load(steepness_ptr)
    steep = tl.maximum(s.to(tl.float64), 1e-30)
    kf = tl.load(k_ptr + row * k_step).to(tl.float64) - above
    safe_k, m = tl.where(done > 0, 1.0, kf), tl.where(done > 0, 2.0, count)
    odds = tl.log(safe_k / (m - safe_k))
    i = tl.arange(0, C)
    if (turn > 1) & (done == 0):
        # The candidates of the step before, from its state, and the sums at them
        tried = candidates(low, high, guess, spread, C)
        p = tl.arange(0, PARTS)
        live = (p < parts)[:, None]
        place = part_ptr + ((((turn + 1) % 2).to(tl.int64) * rows + row) * parts + p[:, None]) * (4 * C) + i[None, :]
        lack = tl.sum(tl.load(place, mask=live, other=0.0), 0)
        members = tl.sum(tl.load(place + C, mask=live, other=0.0), 0)
        larger = tl.sum(tl.load(place + 2 * C, mask=live, other=0.0), 0)
        rises = tl.sum(tl.load(place + 3 * C, mask=live, other=0.0), 0)
        errors = (members - lack) + (larger - kf)
        over = tl.minimum(over, tl.min(tl.where(errors > 0, errors, over), 0))
        under = tl.minimum(under, tl.min(tl.where(errors <= 0, -errors, under), 0))
        low = tl.maximum(low, tl.max(tl.where(errors > 0, tried, low), 0))
        high = tl.minimum(high, tl.min(tl.where(errors <= 0, tried, high), 0))
        moves = newton(lack, members, larger, rises, kf, m, odds, steep)
        least = tl.min(tl.abs(errors), 0)
        chosen = tl.min(tl.where(tl.abs(errors) == least, i, C), 0)
        b = tl.sum(tl.where(i == chosen, tried, 0.0), 0)
        move = tl.sum(tl.where(i == chosen, moves, 0.0), 0)
        near = least <= rounding * tl.sum(tl.where(i == chosen, lack + members, 0.0), 0)
        short = (near == 0) & (tl.abs(move) * steep <= tolerance)
        guess = b + move
        b = tl.where(short, tl.minimum(tl.maximum(guess, low), high), b)
        done = tl.where(near | short, 1.0, 0.0).to(tl.float64)
        spread = tl.maximum(tl.abs(move) * 0.05, 1e-4 / steep)
    if part == 0:
        tl.store(after + LOW, low)
        tl.store(after + HIGH, high)
        tl.store(after + BEST, b)
        tl.store(after + NEXT, guess)
        tl.store(after + SPREAD, spread)
        tl.store(after + DONE, done)
        tl.store(after + COUNT, count)
        tl.store(after + ABOVE, above)
        tl.store(after + BELOW, below)
        tl.store(after + OVER, over)
        tl.store(after + UNDER, under)
    if done == 0:
        tried = candidates(low, high, guess, spread, C)
        lane = tl.arange(0, BLOCK)
        shorts, many = tl.zeros([C, BLOCK], x_ptr.dtype.element_ty), tl.zeros([C, BLOCK], tl.int32)
        smalls, slopes = shorts, shorts
        for start in range(part * chunk, tl.minimum((part + 1) * chunk, n), BLOCK):
            live = (start + lane < n) & (start + lane < (part + 1) * chunk)
            x, present, finite = load_items(x_ptr, mask_ptr, row * n + start + lane, live, MASKED)
            c, d = split(tried, x)
            away = tl.where(finite[None, :], (x[None, :] - c[:, None]) - d[:, None], 0.0)
            z = scaled(away, s)
            rest, slope = tail(z)
            rest, up = tl.where(finite[None, :], rest, 0.0), finite[None, :] & (z >= 0)
            shorts += tl.where(up, rest, 0.0)
            smalls += tl.where(up, 0.0, rest)
            many += up.to(tl.int32)
            slopes += tl.where(finite[None, :], slope, 0.0)
        place = part_ptr + (((turn % 2).to(tl.int64) * rows + row) * parts + part) * (4 * C) + i
        tl.store(place, tl.sum(shorts, 1).to(tl.float64))
        tl.store(place + C, tl.sum(smalls, 1).to(tl.float64))
        tl.store(place + 2 * C, tl.sum(many, 1).to(tl.float64))
        tl.store(place + 3 * C, tl.sum(slopes, 1).to(tl.float64))


@kernel
def members_kernel(
    x_ptr, mask_ptr, steepness_ptr, k_ptr, state_ptr, out_ptr, threshold_ptr, rows, n, k_step, parts, chunk, turn,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row, part = (pid // parts).to(tl.int64), pid % parts
    state_ptr += (turn.to(tl.int64) * rows + row) * STATE
    b, done = tl.load(state_ptr + BEST), tl.load(state_ptr + DONE)
    count, above, below = tl.load(state_ptr + COUNT), tl.load(state_ptr + ABOVE), tl.load(state_ptr + BELOW)
    low, high = tl.load(state_ptr + LOW), tl.load(state_ptr + HIGH)
    over, under = tl.load(state_ptr + OVER), tl.load(state_ptr + UNDER)
    # A search that has not ended: what lies between both ends of the bracket, as in the kernel of whole rows
    share = tl.where((done == 0) & (over + under > 0), under / tl.where(over + under > 0, over + under, 1.0), 0.0)
    b = tl.where(done == 0, high, b)
    s, k = tl.load(steepness_ptr), tl.load(k_ptr + row * k_step).to(tl.float64)
    if part == 0:
        tl.store(threshold_ptr + row, b)
    lane = tl.arange(0, BLOCK)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, n), BLOCK):
        live = (start + lane < n) & (start + lane < (part + 1) * chunk)
        x, present, finite = load_items(x_ptr, mask_ptr, row * n + start + lane, live, MASKED)
        p = member(x, present, finite, b, s, k, count, above, below)
        if share > 0:
            q = member(x, present, finite, low, s, k, count, above, below)
            p = (p + share.to(p.dtype) * (q - p)).to(p.dtype)
        tl.store(out_ptr + row * n + start + lane, p, mask=live)


@kernel
def sums_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, part_ptr, n, parts, chunk,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of w and g w over each part of each row."""
    pid = tl.program_id(0)
    row, part = (pid // parts).to(tl.int64), pid % parts
    b = tl.load(threshold_ptr + row)
    b = tl.where(b - b == 0, b, 0.0)
    s = tl.load(steepness_ptr)
    lane = tl.arange(0, BLOCK)
    ws = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    gws = ws
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, n), BLOCK):
        live = (start + lane < n) & (start + lane < (part + 1) * chunk)
        x, present, finite = load_items(x_ptr, mask_ptr, row * n + start + lane, live, MASKED)
        g = tl.load(grad_ptr + row * n + start + lane, mask=live, other=0.0)
        w, away = weights_at(x, finite, b, s)
        ws, gws = ws + w, gws + tl.where(w > 0, g * w, 0.0)
    part_ptr += pid.to(tl.int64) * 2
    tl.store(part_ptr, tl.sum(ws, 0).to(tl.float64))
    tl.store(part_ptr + 1, tl.sum(gws, 0).to(tl.float64))


@kernel
def slopes_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, part_ptr, grad_x_ptr, grad_k_ptr, grad_s_ptr,
    n, parts, chunk, MASKED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    row, part = (pid // parts).to(tl.int64), pid % parts
    b = tl.load(threshold_ptr + row)
    interior = b - b == 0
    s = tl.load(steepness_ptr)
    p = tl.arange(0, PARTS)
    part_ptr += (row * parts + p) * 2
    w_sum = tl.sum(tl.load(part_ptr, mask=p < parts, other=0.0), 0)
    gw_sum = tl.sum(tl.load(part_ptr + 1, mask=p < parts, other=0.0), 0)
    mean = tl.where(interior & (w_sum > 0), gw_sum / tl.where(w_sum > 0, w_sum, 1.0), 0.0)
    if part == 0:
        tl.store(grad_k_ptr + row, mean)
    lane = tl.arange(0, BLOCK)
    pulls = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    safe = tl.where(interior, b, 0.0)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, n), BLOCK):
        live = (start + lane < n) & (start + lane < (part + 1) * chunk)
        x, present, finite = load_items(x_ptr, mask_ptr, row * n + start + lane, live, MASKED)
        g = tl.load(grad_ptr + row * n + start + lane, mask=live, other=0.0)
        w, away = weights_at(x, finite, safe, s)
        slope = tl.where(w > 0, w * (g - mean.to(x.dtype)), 0.0)
        pulls += tl.where(slope != 0, slope * away, 0.0)
        slope = tl.where(interior, s * slope, tl.where(b != b, float("nan"), 0.0))
        tl.store(grad_x_ptr + row * n + start + lane, slope.to(x.dtype), mask=live)
    # Items are scaled from the threshold
    tl.store(grad_s_ptr + pid, tl.where(interior, tl.sum(pulls, 0).to(tl.float64), 0.0))

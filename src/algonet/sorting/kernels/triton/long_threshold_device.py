"""Template of the kernels of memberships by threshold for few long rows, after `threshold_device.py`.

A launch for each step of the search, in which every program measures C thresholds on its part of a row; nothing waits for
another program but the end of a launch.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .threshold_device import bracket, geometric, measure, newton, store_members, store_slopes, survey, weigh

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


@triton.jit
def part_of(n, parts, chunk):
    """(row, its first item (1, 1), whether there is one, where the part of a row begins and ends) of a program."""
    pid = tl.program_id(0)
    one = tl.zeros([1, 1], tl.int64)
    row, begin = (pid // parts).to(tl.int64), pid % parts * chunk
    return row, row * n + one, one == 0, begin, tl.minimum(begin + chunk, n)


@kernel
def survey_kernel(x_ptr, mask_ptr, part_ptr, n, parts, chunk, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """What there is in each part of each row: counts, extremes, sums."""
    _row, base, there, begin, end = part_of(n, parts, chunk)
    count, above, below, spoiled, least, most, total, square = survey(
        x_ptr, mask_ptr, base, there, begin, end, MASKED, BLOCK
    )
    part_ptr += tl.program_id(0).to(tl.int64) * STATE + tl.arange(0, 1)
    tl.store(part_ptr + COUNT, count)
    tl.store(part_ptr + ABOVE, above)
    tl.store(part_ptr + BELOW, below)
    tl.store(part_ptr + SPOILED, spoiled)
    tl.store(part_ptr + SMALLEST, least)
    tl.store(part_ptr + LARGEST, most)
    tl.store(part_ptr + SUM, total)
    tl.store(part_ptr + SQUARES, square)


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
    interior, m, kf, low, high, b = bracket(
        k == k, count, above, spoiled, least, most, total, square, k, s, reach
    )  # fmt: skip
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
    row, base, there, begin, end = part_of(n, parts, chunk)
    part = tl.program_id(0) % parts
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
        lack, members, larger, rises = measure(x_ptr, mask_ptr, base, there, begin, end, tried, s, MASKED, BLOCK)
        place = part_ptr + (((turn % 2).to(tl.int64) * rows + row) * parts + part) * (4 * C) + i
        tl.store(place, lack)
        tl.store(place + C, members)
        tl.store(place + 2 * C, larger)
        tl.store(place + 3 * C, rises)


@kernel
def members_kernel(
    x_ptr, mask_ptr, steepness_ptr, k_ptr, state_ptr, out_ptr, threshold_ptr, rows, n, k_step, parts, chunk, turn,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, base, there, begin, end = part_of(n, parts, chunk)
    one = tl.arange(0, 1)
    state_ptr += (turn.to(tl.int64) * rows + row) * STATE + one
    low, high = tl.load(state_ptr + LOW), tl.load(state_ptr + HIGH)
    over, under = tl.load(state_ptr + OVER), tl.load(state_ptr + UNDER)
    count, above, below = tl.load(state_ptr + COUNT), tl.load(state_ptr + ABOVE), tl.load(state_ptr + BELOW)
    s, k = tl.load(steepness_ptr), tl.load(k_ptr + row * k_step + one).to(tl.float64)
    b = store_members(
        x_ptr, mask_ptr, out_ptr, base, there, begin, end, tl.load(state_ptr + DONE) > 0, tl.load(state_ptr + BEST), low,
        high, over, under, s, k, count, above, below, MASKED, BLOCK,
    )  # fmt: skip
    tl.store(threshold_ptr + row + one, b, mask=(begin + one) == 0)


@kernel
def sums_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, part_ptr, n, parts, chunk,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of w and g w over each part of each row."""
    row, base, there, begin, end = part_of(n, parts, chunk)
    b, s = tl.load(threshold_ptr + row + tl.arange(0, 1)), tl.load(steepness_ptr)
    w_sum, gw_sum = weigh(x_ptr, mask_ptr, grad_ptr, base, there, begin, end, b, s, MASKED, BLOCK)
    part_ptr += tl.program_id(0).to(tl.int64) * 2 + tl.arange(0, 1)
    tl.store(part_ptr, w_sum)
    tl.store(part_ptr + 1, gw_sum)


@kernel
def slopes_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, part_ptr, grad_x_ptr, grad_k_ptr, grad_s_ptr,
    n, parts, chunk, MASKED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, base, there, begin, end = part_of(n, parts, chunk)
    one, p = tl.arange(0, 1), tl.arange(0, PARTS)
    b, s = tl.load(threshold_ptr + row + one), tl.load(steepness_ptr)
    part_ptr += (row * parts + p) * 2
    zero = tl.zeros([1], tl.float64)
    w_sum = tl.sum(tl.load(part_ptr, mask=p < parts, other=0.0), 0) + zero
    gw_sum = tl.sum(tl.load(part_ptr + 1, mask=p < parts, other=0.0), 0) + zero
    by_k, by_s = store_slopes(
        x_ptr, mask_ptr, grad_ptr, grad_x_ptr, base, there, begin, end, b, w_sum, gw_sum, s, MASKED, BLOCK
    )
    tl.store(grad_k_ptr + row + one, by_k, mask=(begin + one) == 0)
    tl.store(grad_s_ptr + tl.program_id(0) + one, by_s)

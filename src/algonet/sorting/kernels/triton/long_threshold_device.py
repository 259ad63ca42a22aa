"""Template of the kernels of memberships by threshold for few long rows, after `threshold_device.py`.

A launch for each step of the search, in which every program measures C thresholds on its part of a row; nothing waits for
another program but the end of a launch.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: RUF005 (Triton adds tuples, but does not unpack them)

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .threshold_device import bracket, geometric, measure, newton, store_members, store_slopes, survey, weigh

# --- template ---
#: The most numbers of a row's state between launches, and of what a program found out about its part.
STATE = tl.constexpr(16)


@triton.jit
def load_all(place, COUNT: tl.constexpr):
    found = ()
    for i in tl.static_range(COUNT):
        found = found + (tl.load(place + i),)
    return found


@triton.jit
def store_all(place, numbers, COUNT: tl.constexpr):
    for i in tl.static_range(COUNT):
        tl.store(place + i, numbers[i])


@triton.jit
def part_of(x_ptr, mask_ptr, n, parts, chunk):
    """(row, `rows` of `load_items`) of a program, which looks at a part of one."""
    pid = tl.program_id(0)
    one = tl.zeros([1, 1], tl.int64)
    row, begin = (pid // parts).to(tl.int64), pid % parts * chunk
    return row, (x_ptr, mask_ptr, row * n + one, one == 0, begin, tl.minimum(begin + chunk, n))


@kernel
def survey_kernel(x_ptr, mask_ptr, part_ptr, n, parts, chunk, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """What there is in each part of each row: counts, extremes, sums."""
    _row, rows = part_of(x_ptr, mask_ptr, n, parts, chunk)
    place = part_ptr + tl.program_id(0).to(tl.int64) * STATE + tl.arange(0, 1)
    store_all(place, survey(rows, MASKED, BLOCK), 8)


@kernel
def gather_kernel(steepness_ptr, k_ptr, part_ptr, state_ptr, k_step, reach, parts, PARTS: tl.constexpr):
    """The state of a row before the search, from what `survey_kernel` found: the bracket, the best threshold, the next guess
    and the spread around it, whether the search is done, what is over k at the low end and under it at the high end, and how
    many items are finite, and infinite above and below."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, PARTS)
    part_ptr += (row * parts + p) * STATE
    s = tl.maximum(tl.load(steepness_ptr).to(tl.float64), 1e-30)
    k = tl.load(k_ptr + row * k_step).to(tl.float64)
    found = ()
    for i in tl.static_range(8):
        if i == 4:
            number = tl.min(tl.load(part_ptr + i, mask=p < parts, other=1e308), 0)
        elif i == 5:
            number = tl.max(tl.load(part_ptr + i, mask=p < parts, other=-1e308), 0)
        else:
            number = tl.sum(tl.load(part_ptr + i, mask=p < parts, other=0.0), 0)
        found = found + (number,)
    interior, m, kf, low, high, b = bracket(k == k, found, k, s, reach)
    done = tl.where(interior, 0.0, 1.0)
    state = low, high, b, b, (high - low) * 0.02, done, m, kf, found[0], found[1], found[2]
    store_all(state_ptr + row * STATE, state, 11)


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
    x_ptr, mask_ptr, steepness_ptr, k_ptr, part_ptr, state_ptr, lines, n, k_step, tolerance, rounding, parts, chunk, turn,
    MASKED: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of the search: from the sums at the last candidates to a narrower bracket, and sums at the next.

    Every program of a row reads what all of them found in the step before and comes to the same state; the first writes it.
    """
    row, rows = part_of(x_ptr, mask_ptr, n, parts, chunk)
    part = tl.program_id(0) % parts
    before = state_ptr + ((turn - 1).to(tl.int64) * lines + row) * STATE
    low, high, b, guess, spread, done, over, under, count, above, below = load_all(before, 11)
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
        place = part_ptr + ((((turn + 1) % 2).to(tl.int64) * lines + row) * parts + p[:, None]) * (4 * C) + i[None, :]
        sums = ()
        for j in tl.static_range(4):
            sums = sums + (tl.sum(tl.load(place + j * C, mask=live, other=0.0), 0),)
        lack, members, larger, rises = sums
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
        after = low, high, b, guess, spread, done, over, under, count, above, below
        store_all(state_ptr + (turn.to(tl.int64) * lines + row) * STATE, after, 11)
    if done == 0:
        place = part_ptr + (((turn % 2).to(tl.int64) * lines + row) * parts + part) * (4 * C) + i
        found = measure(rows, candidates(low, high, guess, spread, C), s, MASKED, BLOCK)
        for j in tl.static_range(4):
            tl.store(place + j * C, found[j])


@kernel
def members_kernel(
    x_ptr, mask_ptr, steepness_ptr, k_ptr, state_ptr, out_ptr, threshold_ptr, lines, n, k_step, parts, chunk, turn,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, rows = part_of(x_ptr, mask_ptr, n, parts, chunk)
    one = tl.arange(0, 1)
    place = state_ptr + (turn.to(tl.int64) * lines + row) * STATE + one
    low, high, b, _guess, _spread, done, over, under, count, above, below = load_all(place, 11)
    s, k = tl.load(steepness_ptr), tl.load(k_ptr + row * k_step + one).to(tl.float64)
    b = store_members(rows, out_ptr, done > 0, b, low, high, over, under, s, k, count, above, below, MASKED, BLOCK)
    tl.store(threshold_ptr + row + one, b, mask=(rows[4] + one) == 0)


@kernel
def sums_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, part_ptr, n, parts, chunk,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of w and g w over each part of each row."""
    row, rows = part_of(x_ptr, mask_ptr, n, parts, chunk)
    b, s = tl.load(threshold_ptr + row + tl.arange(0, 1)), tl.load(steepness_ptr)
    place = part_ptr + tl.program_id(0).to(tl.int64) * 2 + tl.arange(0, 1)
    store_all(place, weigh(rows, grad_ptr, b, s, MASKED, BLOCK), 2)


@kernel
def slopes_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, part_ptr, grad_x_ptr, grad_k_ptr, grad_s_ptr,
    n, parts, chunk, MASKED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, rows = part_of(x_ptr, mask_ptr, n, parts, chunk)
    one, p = tl.arange(0, 1), tl.arange(0, PARTS)
    b, s = tl.load(threshold_ptr + row + one), tl.load(steepness_ptr)
    part_ptr += (row * parts + p) * 2
    zero = tl.zeros([1], tl.float64)
    w_sum = tl.sum(tl.load(part_ptr, mask=p < parts, other=0.0), 0) + zero
    gw_sum = tl.sum(tl.load(part_ptr + 1, mask=p < parts, other=0.0), 0) + zero
    by_k, by_s = store_slopes(rows, grad_ptr, grad_x_ptr, b, w_sum, gw_sum, s, MASKED, BLOCK)
    tl.store(grad_k_ptr + row + one, by_k, mask=(rows[4] + one) == 0)
    tl.store(grad_s_ptr + tl.program_id(0) + one, by_s)

"""Template of the Triton kernels of memberships by threshold; `source.py` puts a sigmoid's `gate` before it.

The threshold b is a float64; items see it as c + d, c rounded to their precision: x - c is then exact near the threshold.
Every lane adds up its own items, in their precision, and lanes are put together once: a sum over lanes waits for all of them.
A program solves ROWS rows from beginning to end. For few long rows there is a launch for each step of the search, in which
every program measures C thresholds on its part of a row; nothing waits for another program but the end of a launch.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: RUF005, RUF059 (Triton adds tuples, but does not unpack them, and its functions return all of their results)
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel


@triton.jit
def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


#: Whether r(-z) = 1 - r(z).
SYMMETRIC = tl.constexpr(True)


# --- template ---
#: Steps of the search in one program; a tenth is usual.
MOST = tl.constexpr(150)
#: Sum of tails below which the threshold lies in a gap between items.
GAP = tl.constexpr(1e-3)


@triton.jit
def away_from(x, finite, b):
    """x - b; of b its head in the precision of x first, which is exact near the threshold, then the rest."""
    c = b.to(x.dtype)
    d = (b - c.to(tl.float64)).to(x.dtype)
    return tl.where(finite, (x - c) - d, 0.0).to(x.dtype)


@triton.jit
def scaled(away, s):
    """s away within +-1e18, where every sigmoid is flat."""
    z = s * away
    z = tl.where(z > 1e18, 1e18, z)
    return tl.where(z < -1e18, -1e18, z).to(away.dtype)


@triton.jit
def tail(z):
    """(what is left to the nearer of 0 and 1, slope): of members, 1 - p keeps more digits than p."""
    if SYMMETRIC:
        rest, slope = gate(-tl.abs(z))
    else:
        value, slope = gate(z)
        rest = tl.where(z < 0, value, 1.0 - value)
    return rest.to(z.dtype), slope.to(z.dtype)


@triton.jit
def load_items(rows, start, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """(place, whether there is such an item, x, present, finite) of BLOCK items from `start` on.

    `rows` are the items and the mask, where each row begins, whether it is one, and from where to where it is looked at.
    """
    x_ptr, mask_ptr, base, here, _begin, end = rows
    item = start + tl.arange(0, BLOCK)[None, :]
    place, live = base + item, here & (item < end)
    x = tl.load(x_ptr + place, mask=live, other=0.0)
    present = live
    if MASKED:
        present = live & (tl.load(mask_ptr + place, mask=live, other=0) != 0)
    return place, live, x, present, present & (x - x == 0)


@triton.jit
def geometric(low, high):
    mean = tl.sqrt(tl.maximum(tl.abs(low), 1e-300)) * tl.sqrt(tl.maximum(tl.abs(high), 1e-300))
    return tl.where((low < 0) & (high > 0), 0.0, tl.where(high > 0, mean, -mean))


@triton.jit
def newton(lack, member, above, rise, k, n, odds, s):
    """A step from b: in the logit of the mean membership, or in a gap between items, where tails on both sides must balance, in
    the logarithm of their ratio. NaN where there is none. Its own number: added to a huge b it would be lost."""
    total, tails = above + (member - lack), lack + member
    inside = (total > 0) & (total < n) & (rise > 0)
    t = tl.where(inside, total, 0.5 * n)
    step = (tl.log(t / (n - t)) - odds) * t * (n - t) / (n * tl.where(inside, rise, 1.0) * s)
    gap = (above == k) & (tails < GAP)
    some = (lack > 0) & (member > 0) & (rise > 0)
    balance = tl.log(tl.where(some, member, 1.0)) - tl.log(tl.where(some, lack, 1.0))
    balance = 0.5 * balance * tails / (tl.where(some, rise, 1.0) * s)
    step = tl.where(gap, balance, step)
    return tl.where(tl.where(gap, some, inside), step, float("nan"))


@triton.jit
def survey(rows, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Of the items of each row: (finite ones, infinite above, below, NaN, least, most, sum, sum of squares)."""
    height: tl.constexpr = rows[2].shape[0]
    many = tl.zeros([height, BLOCK], tl.int32)
    above, below, nans = many, many, many
    sums = tl.zeros([height, BLOCK], rows[0].dtype.element_ty)
    squares, smallest, largest = sums, sums + float("inf"), sums - float("inf")
    for start in range(rows[4], rows[5], BLOCK):
        _place, _live, x, present, finite = load_items(rows, start, MASKED, BLOCK)
        y = tl.where(finite, x, 0.0).to(x.dtype)
        many += finite.to(tl.int32)
        above += (present & (x - x != 0) & (x > 0)).to(tl.int32)
        below += (present & (x - x != 0) & (x < 0)).to(tl.int32)
        nans += (present & (x != x)).to(tl.int32)
        sums += y
        squares += y * y
        smallest = tl.minimum(smallest, tl.where(finite, x, float("inf")))
        largest = tl.maximum(largest, tl.where(finite, x, float("-inf")))
    counts = total(many), total(above), total(below), total(nans)
    ends = tl.min(smallest, 1).to(tl.float64), tl.max(largest, 1).to(tl.float64)
    return counts + ends + (total(sums), total(squares))


@triton.jit
def total(lanes):
    return tl.sum(lanes, 1).to(tl.float64)


@triton.jit
def bracket(here, found, k, s, reach):
    """(whether there is a threshold to find, items, k among them, the ends, the first guess or what stands for it)."""
    count, above, _below, spoiled, least, most, total, square = found
    wanted = k - above
    interior = here & (wanted > 0) & (wanted < count) & (spoiled == 0)
    m, kf = tl.where(interior, count, 2.0), tl.where(interior, wanted, 1.0)
    least, most = tl.where(interior, least, 0.0), tl.where(interior, most, 0.0)
    low, high = least - reach / s - 1e-12 * tl.abs(least), most + reach / s + 1e-12 * tl.abs(most)
    # Where it would be for items of a logistic distribution with this mean and deviation
    mean = total / m
    guess = mean - 0.6 * tl.log(kf / (m - kf)) * tl.sqrt(tl.maximum(square / m - mean * mean, 0.0))
    guess = tl.where(guess > most, most, guess)
    guess = tl.where(guess < least, least, guess)
    b = tl.where((guess > low) & (guess < high), guess, 0.5 * low + 0.5 * high)
    b = tl.where(interior, b, tl.where(wanted <= 0, float("inf"), float("-inf")).to(tl.float64))
    return interior, m, kf, low, high, tl.where((spoiled > 0) | (k != k), float("nan"), b)


@triton.jit
def measure(rows, b, s, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """For each threshold b: (what items above it lack to 1, memberships below it, how many are above, sum of slopes)."""
    shorts = tl.zeros([b.shape[0], BLOCK], rows[0].dtype.element_ty)
    many = tl.zeros([b.shape[0], BLOCK], tl.int32)
    smalls, rises = shorts, shorts
    for start in range(rows[4], rows[5], BLOCK):
        _place, _live, x, _present, finite = load_items(rows, start, MASKED, BLOCK)
        z = scaled(away_from(x, finite, b[:, None]), s)
        rest, slope = tail(z)
        rest, up = tl.where(finite, rest, 0.0), finite & (z >= 0)
        shorts += tl.where(up, rest, 0.0)
        smalls += tl.where(up, 0.0, rest)
        many += up.to(tl.int32)
        rises += tl.where(finite, slope, 0.0)
    return total(shorts), total(smalls), total(many), total(rises)


@triton.jit
def store_members(
    rows,
    out_ptr,
    found,
    b,
    low,
    high,
    over,
    under,
    s,
    k,
    count,
    above,
    below,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Stores memberships and returns the threshold. Where no b gives k (not `found`), because neighbouring numbers lie too far
    apart, what lies between both ends of the bracket does."""
    b = tl.where(found, b, high)
    share = tl.where(found | (over + under <= 0), 0.0, under / tl.where(over + under > 0, over + under, 1.0))
    for start in range(rows[4], rows[5], BLOCK):
        place, live, x, present, finite = load_items(rows, start, MASKED, BLOCK)
        p = member(x, present, finite, b, s, k, count, above, below)
        if tl.max(share, 0) > 0:
            q = member(x, present, finite, tl.where(found, b, low), s, k, count, above, below)
            p = (p + share[:, None].to(p.dtype) * (q - p)).to(p.dtype)
        tl.store(out_ptr + place, p, mask=live)
    return b


@triton.jit
def member(x, present, finite, b, s, k, count, above, below):
    """The membership of each item, given the row's threshold and its infinite items."""
    inside = (b - b == 0)[:, None]
    z = scaled(away_from(x, finite, tl.where(inside, b[:, None], 0.0)), s)
    rest, slope = tail(z)
    p = tl.where(inside, tl.where(z < 0, rest, 1.0 - rest), tl.where(b > 0, 0.0, 1.0)[:, None]).to(x.dtype)
    share_above = tl.minimum(tl.maximum(k / tl.maximum(above, 1.0), 0.0), 1.0)
    share_below = tl.minimum(tl.maximum((k - above - count) / tl.maximum(below, 1.0), 0.0), 1.0)
    p = tl.where(finite, p, tl.where(x > 0, share_above[:, None], share_below[:, None]).to(x.dtype))
    return tl.where(present, tl.where((b == b)[:, None], p, float("nan")), 0.0).to(x.dtype)


@triton.jit
def weights_at(rows, start, grad_ptr, b, s, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """(place, whether there is such an item, gradient, w, x - b): w the slope of a membership by s x, 0 where all sigmoids are
    flat. A b that is not finite stands for 0."""
    place, live, x, _present, finite = load_items(rows, start, MASKED, BLOCK)
    g = tl.load(grad_ptr + place, mask=live, other=0.0)
    away = away_from(x, finite, tl.where(b - b == 0, b, 0.0)[:, None])
    z = scaled(away, s)
    rest, slope = tail(z)
    return place, live, g, tl.where(finite & (tl.abs(z) < 1e18), slope, 0.0).to(x.dtype), away


@triton.jit
def weigh(rows, grad_ptr, b, s, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of w and g w, w the slope of a membership."""
    ws = tl.zeros([rows[2].shape[0], BLOCK], rows[0].dtype.element_ty)
    gws = ws
    for start in range(rows[4], rows[5], BLOCK):
        _place, _live, g, w, _away = weights_at(rows, start, grad_ptr, b, s, MASKED, BLOCK)
        ws, gws = ws + w, gws + tl.where(w > 0, g * w, 0.0)
    return total(ws), total(gws)


@triton.jit
def store_slopes(rows, grad_ptr, grad_x_ptr, b, w_sum, gw_sum, s, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Stores the gradients by items and returns those by k and by the steepness. Items are scaled from the threshold."""
    interior = b - b == 0
    mean = tl.where(interior & (w_sum > 0), gw_sum / tl.where(w_sum > 0, w_sum, 1.0), 0.0)
    kind = rows[0].dtype.element_ty
    pulls = tl.zeros([rows[2].shape[0], BLOCK], kind)
    for start in range(rows[4], rows[5], BLOCK):
        place, live, g, w, away = weights_at(rows, start, grad_ptr, b, s, MASKED, BLOCK)
        slope = tl.where(w > 0, w * (g - mean[:, None].to(kind)), 0.0)
        pulls += tl.where(slope != 0, slope * away, 0.0)
        slope = tl.where(interior[:, None], s * slope, tl.where(b != b, float("nan"), 0.0)[:, None])
        tl.store(grad_x_ptr + place, slope.to(kind), mask=live)
    return mean, tl.where(interior, total(pulls), 0.0)


@kernel
def rows_forward_kernel(
    x_ptr, mask_ptr, steepness_ptr, k_ptr, out_ptr, threshold_ptr, count, n, k_step, reach, tolerance, rounding,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A threshold of -inf or inf says that all or none of the finite items are members."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < count
    rows = x_ptr, mask_ptr, row[:, None] * n, here[:, None], 0, n
    s = tl.load(steepness_ptr)
    steep = tl.maximum(s.to(tl.float64), 1e-30)
    k = tl.load(k_ptr + row * k_step, mask=here, other=0.0).to(tl.float64)
    found = survey(rows, MASKED, BLOCK)
    interior, m, kf, low, high, b = bracket(here, found, k, steep, reach)
    odds = tl.log(kf / (m - kf))
    width = high - low
    over, under = m, kf
    converged = interior == 0
    active = interior
    step = 0
    while (step < MOST) & (tl.max(active.to(tl.int32), 0) > 0):
        near = tl.where(interior, b, 0.0)
        lack, members, larger, rise = measure(rows, near, s, MASKED, BLOCK)
        error = (members - lack) + (larger - kf)
        up, down = active & (error > 0), active & (error <= 0)
        low, over = tl.where(up, b, low), tl.where(up, error, over)
        high, under = tl.where(down, b, high), tl.where(down, -error, under)
        converged = converged | (active & (tl.abs(error) <= rounding * (lack + members)))
        active = active & (converged == 0)
        move = newton(lack, members, larger, rise, kf, m, odds, steep)
        new = b + move
        short = active & (tl.abs(move) * steep <= tolerance)
        b = tl.where(short, tl.minimum(tl.maximum(new, low), high), b)
        converged = converged | short
        active = active & (short == 0)
        # Newton must halve the bracket in three steps, or bisection does
        third = step % 3 == 2
        slow = third & (high - low > 0.5 * width)
        width = tl.where(third, high - low, width)
        middle = 0.5 * low + 0.5 * high
        other = tl.where(step % 2 == 1, geometric(low, high), middle)
        other = tl.where((other > low) & (other < high), other, middle)
        new = tl.where(slow | ((new > low) & (new < high) == 0), other, new)
        active = active & (new > low) & (new < high)
        b = tl.where(active, new, b)
        step += 1

    b = store_members(
        rows, out_ptr, converged, b, low, high, over, under, s, k, found[0], found[1], found[2], MASKED, BLOCK
    )
    tl.store(threshold_ptr + row, b, mask=here)


@kernel
def rows_backward_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, grad_x_ptr, grad_k_ptr, grad_s_ptr, count, n,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < count
    rows = x_ptr, mask_ptr, row[:, None] * n, here[:, None], 0, n
    s, b = tl.load(steepness_ptr), tl.load(threshold_ptr + row, mask=here, other=0.0)
    w_sum, gw_sum = weigh(rows, grad_ptr, b, s, MASKED, BLOCK)
    by_k, by_s = store_slopes(rows, grad_ptr, grad_x_ptr, b, w_sum, gw_sum, s, MASKED, BLOCK)
    tl.store(grad_k_ptr + row, by_k, mask=here)
    tl.store(grad_s_ptr + row, by_s, mask=here)


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

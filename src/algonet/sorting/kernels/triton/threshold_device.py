"""Template of the Triton kernels of memberships by threshold; `source.py` puts a sigmoid's `gate` before it.

The threshold b is a float64; items see it as c + d, c rounded to their precision: x - c is then exact near the threshold.
Every lane adds up its own items, in their precision, and lanes are put together once: a sum over lanes waits for all of them.
A program solves ROWS rows from beginning to end; for few long rows see `long_threshold_device.py`.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
# ruff: noqa: RUF059 (Triton's functions return all of their results)
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
def split(b, x):
    """(c, d) with b = c + d, in the precision of x."""
    c = b.to(x.dtype)
    return c, (b - c.to(tl.float64)).to(x.dtype)


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
def load_items(x_ptr, mask_ptr, place, live, MASKED: tl.constexpr):
    """(x, present, finite) at these places."""
    x = tl.load(x_ptr + place, mask=live, other=0.0)
    present = live
    if MASKED:
        present = live & (tl.load(mask_ptr + place, mask=live, other=0) != 0)
    return x, present, present & (x - x == 0)


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
def survey(x_ptr, mask_ptr, base, here, begin, end, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Of the items begin ... end of each row: (finite ones, infinite above, below, NaN, least, most, sum, sum of squares)."""
    kind = x_ptr.dtype.element_ty
    lane = tl.arange(0, BLOCK)[None, :]
    many = tl.zeros([base.shape[0], BLOCK], tl.int32)
    above, below, nans = many, many, many
    sums = tl.zeros([base.shape[0], BLOCK], kind)
    squares, smallest, largest = sums, sums + float("inf"), sums - float("inf")
    for start in range(begin, end, BLOCK):
        live = here & (start + lane < end)
        x, present, finite = load_items(x_ptr, mask_ptr, base + start + lane, live, MASKED)
        y = tl.where(finite, x, 0.0).to(x.dtype)
        many += finite.to(tl.int32)
        above += (present & (x - x != 0) & (x > 0)).to(tl.int32)
        below += (present & (x - x != 0) & (x < 0)).to(tl.int32)
        nans += (present & (x != x)).to(tl.int32)
        sums += y
        squares += y * y
        smallest = tl.minimum(smallest, tl.where(finite, x, float("inf")))
        largest = tl.maximum(largest, tl.where(finite, x, float("-inf")))
    count, spoiled = tl.sum(many, 1).to(tl.float64), tl.sum(nans, 1).to(tl.float64)
    least, most = tl.min(smallest, 1).to(tl.float64), tl.max(largest, 1).to(tl.float64)
    total, square = tl.sum(sums, 1).to(tl.float64), tl.sum(squares, 1).to(tl.float64)
    return count, tl.sum(above, 1).to(tl.float64), tl.sum(below, 1).to(tl.float64), spoiled, least, most, total, square


@triton.jit
def bracket(here, count, above, spoiled, least, most, total, square, k, s, reach):
    """(whether there is a threshold to find, items, k among them, the ends, the first guess or what stands for it)."""
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
def measure(x_ptr, mask_ptr, base, here, begin, end, b, s, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """For each threshold b: (what items above it lack to 1, memberships below it, how many are above, sum of slopes)."""
    lane = tl.arange(0, BLOCK)[None, :]
    shorts, many = tl.zeros([b.shape[0], BLOCK], x_ptr.dtype.element_ty), tl.zeros([b.shape[0], BLOCK], tl.int32)
    smalls, rises = shorts, shorts
    for start in range(begin, end, BLOCK):
        live = here & (start + lane < end)
        x, present, finite = load_items(x_ptr, mask_ptr, base + start + lane, live, MASKED)
        c, d = split(b, x)
        z = scaled(tl.where(finite, (x - c[:, None]) - d[:, None], 0.0), s)
        rest, slope = tail(z)
        rest, up = tl.where(finite, rest, 0.0), finite & (z >= 0)
        shorts += tl.where(up, rest, 0.0)
        smalls += tl.where(up, 0.0, rest)
        many += up.to(tl.int32)
        rises += tl.where(finite, slope, 0.0)
    lack, members = tl.sum(shorts, 1).to(tl.float64), tl.sum(smalls, 1).to(tl.float64)
    return lack, members, tl.sum(many, 1).to(tl.float64), tl.sum(rises, 1).to(tl.float64)


@triton.jit
def store_members(
    x_ptr, mask_ptr, out_ptr, base, here, begin, end, found, b, low, high, over, under, s, k, count, above, below,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores memberships and returns the threshold. Where no b gives k (not `found`), because neighbouring numbers lie too far
    apart, what lies between both ends of the bracket does."""
    b = tl.where(found, b, high)
    share = tl.where(found | (over + under <= 0), 0.0, under / tl.where(over + under > 0, over + under, 1.0))
    lane = tl.arange(0, BLOCK)[None, :]
    for start in range(begin, end, BLOCK):
        live = here & (start + lane < end)
        x, present, finite = load_items(x_ptr, mask_ptr, base + start + lane, live, MASKED)
        p = member(x, present, finite, b[:, None], s, k[:, None], count[:, None], above[:, None], below[:, None])
        if tl.max(share, 0) > 0:
            ends = tl.where(found, b, low)[:, None]
            q = member(x, present, finite, ends, s, k[:, None], count[:, None], above[:, None], below[:, None])
            p = (p + share[:, None].to(p.dtype) * (q - p)).to(p.dtype)
        tl.store(out_ptr + base + start + lane, p, mask=live)
    return b


@triton.jit
def weigh(x_ptr, mask_ptr, grad_ptr, base, here, begin, end, b, s, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of w and g w, w the slope of a membership."""
    lane = tl.arange(0, BLOCK)[None, :]
    ws = tl.zeros([base.shape[0], BLOCK], x_ptr.dtype.element_ty)
    gws = ws
    for start in range(begin, end, BLOCK):
        live = here & (start + lane < end)
        x, present, finite = load_items(x_ptr, mask_ptr, base + start + lane, live, MASKED)
        g = tl.load(grad_ptr + base + start + lane, mask=live, other=0.0)
        w, away = weights_at(x, finite, tl.where(b - b == 0, b, 0.0)[:, None], s)
        ws, gws = ws + w, gws + tl.where(w > 0, g * w, 0.0)
    return tl.sum(ws, 1).to(tl.float64), tl.sum(gws, 1).to(tl.float64)


@triton.jit
def store_slopes(
    x_ptr, mask_ptr, grad_ptr, grad_x_ptr, base, here, begin, end, b, w_sum, gw_sum, s, MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the gradients by items and returns those by k and by the steepness. Items are scaled from the threshold."""
    interior = b - b == 0
    mean = tl.where(interior & (w_sum > 0), gw_sum / tl.where(w_sum > 0, w_sum, 1.0), 0.0)
    lane = tl.arange(0, BLOCK)[None, :]
    pulls = tl.zeros([base.shape[0], BLOCK], x_ptr.dtype.element_ty)
    for start in range(begin, end, BLOCK):
        live = here & (start + lane < end)
        x, present, finite = load_items(x_ptr, mask_ptr, base + start + lane, live, MASKED)
        g = tl.load(grad_ptr + base + start + lane, mask=live, other=0.0)
        w, away = weights_at(x, finite, tl.where(interior, b, 0.0)[:, None], s)
        slope = tl.where(w > 0, w * (g - mean[:, None].to(x.dtype)), 0.0)
        pulls += tl.where(slope != 0, slope * away, 0.0)
        slope = tl.where(interior[:, None], s * slope, tl.where(b != b, float("nan"), 0.0)[:, None])
        tl.store(grad_x_ptr + base + start + lane, slope.to(x.dtype), mask=live)
    return mean, tl.where(interior, tl.sum(pulls, 1).to(tl.float64), 0.0)


@triton.jit
def member(x, present, finite, b, s, k, count, above, below):
    """The membership of each item, given the row's threshold and its infinite items."""
    inside = b - b == 0
    c, d = split(tl.where(inside, b, 0.0), x)
    z = scaled(tl.where(finite, (x - c) - d, 0.0), s)
    rest, slope = tail(z)
    p = tl.where(inside, tl.where(z < 0, rest, 1.0 - rest), tl.where(b > 0, 0.0, 1.0)).to(x.dtype)
    share_above = tl.minimum(tl.maximum(k / tl.maximum(above, 1.0), 0.0), 1.0)
    share_below = tl.minimum(tl.maximum((k - above - count) / tl.maximum(below, 1.0), 0.0), 1.0)
    p = tl.where(finite, p, tl.where(x > 0, share_above, share_below).to(x.dtype))
    return tl.where(present, tl.where(b == b, p, float("nan")), 0.0).to(x.dtype)


@triton.jit
def weights_at(x, finite, b, s):
    """(w, x - b): the slope of a membership by s x, 0 where all sigmoids are flat."""
    c, d = split(b, x)
    away = tl.where(finite, (x - c) - d, 0.0).to(x.dtype)
    z = scaled(away, s)
    rest, slope = tail(z)
    return tl.where(finite & (tl.abs(z) < 1e18), slope, 0.0).to(x.dtype), away


@kernel
def rows_forward_kernel(
    x_ptr, mask_ptr, steepness_ptr, k_ptr, out_ptr, threshold_ptr, rows, n, k_step, reach, tolerance, rounding,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A threshold of -inf or inf says that all or none of the finite items are members."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < rows
    base, there = row[:, None] * n, here[:, None]
    s = tl.load(steepness_ptr)
    steep = tl.maximum(s.to(tl.float64), 1e-30)
    k = tl.load(k_ptr + row * k_step, mask=here, other=0.0).to(tl.float64)
    count, above, below, spoiled, least, most, total, square = survey(x_ptr, mask_ptr, base, there, 0, n, MASKED, BLOCK)
    interior, m, kf, low, high, b = bracket(
        here, count, above, spoiled, least, most, total, square, k, steep, reach
    )  # fmt: skip
    odds = tl.log(kf / (m - kf))
    width = high - low
    over, under = m, kf
    converged = interior == 0
    active = interior
    step = 0
    while (step < MOST) & (tl.max(active.to(tl.int32), 0) > 0):
        near = tl.where(interior, b, 0.0)
        lack, members, larger, rise = measure(x_ptr, mask_ptr, base, there, 0, n, near, s, MASKED, BLOCK)
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
        x_ptr, mask_ptr, out_ptr, base, there, 0, n, converged, b, low, high, over, under, s, k, count, above, below,
        MASKED, BLOCK,
    )  # fmt: skip
    tl.store(threshold_ptr + row, b, mask=here)


@kernel
def rows_backward_kernel(
    x_ptr, mask_ptr, steepness_ptr, threshold_ptr, grad_ptr, grad_x_ptr, grad_k_ptr, grad_s_ptr, rows, n,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < rows
    base, there = row[:, None] * n, here[:, None]
    s, b = tl.load(steepness_ptr), tl.load(threshold_ptr + row, mask=here, other=0.0)
    w_sum, gw_sum = weigh(x_ptr, mask_ptr, grad_ptr, base, there, 0, n, b, s, MASKED, BLOCK)
    by_k, by_s = store_slopes(
        x_ptr, mask_ptr, grad_ptr, grad_x_ptr, base, there, 0, n, b, w_sum, gw_sum, s, MASKED, BLOCK
    )
    tl.store(grad_k_ptr + row, by_k, mask=here)
    tl.store(grad_s_ptr + row, by_s, mask=here)

"""Template of the Numba kernels of memberships by threshold; `source.py` puts a sigmoid's `gate` before it.

The threshold b is a float64; items see it as c + d, c rounded to their precision: x - c is then exact near the threshold.
"""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
import math

import numpy as np
from numba import float32 as REAL  # noqa: N812

from algonet.core.codegen.jit import njit


def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


#: Whether r(-z) = 1 - r(z).
SYMMETRIC = True

# --- template ---
#: The search ends with a step this short (in units of the sigmoid), or an error this small beside the tails it is made of.
TOLERANCE, ROUNDING = (1e-4, 2e-7) if REAL.bitwidth == 32 else (3e-8, 2e-16)
#: Sums may be reordered: that is what lets them run in vector registers. NaN and infinities keep their meaning.
SUMS = {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy", "nogil": True}
#: As written: with reordering, x - x would be 0 for infinities too, and (x - c) - d would be rounded otherwise.
STRICT = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
FAR = REAL(1e18)
#: Items summed in their own precision before they are added in float64.
CHUNK = 2048
#: Steps of the search; a tenth is usual.
MOST = 150
#: Sum of tails below which the threshold lies in a gap between items.
GAP = 1e-3


@njit(**STRICT)
def parts(b):
    c = REAL(b)
    return c, REAL(b - np.float64(c))


@njit(**STRICT)
def away_from(x, c, d):
    """x - b in this order: the first difference is exact near the threshold."""
    return (x - c) - d


@njit(**STRICT)
def scaled(x, c, d, s):
    return min(max(s * away_from(x, c, d), -FAR), FAR)


@njit(**SUMS)
def tail(z):
    """(what is left to the nearer of 0 and 1, slope): of members, 1 - p keeps more digits than p."""
    if SYMMETRIC:
        rest, slope = gate(-abs(z))
        return rest, slope
    value, slope = gate(z)
    return (value if z < REAL(0.0) else REAL(1.0) - value), slope


@njit(**SUMS)
def measure(x, b, s):
    """(sum of what items above b lack to 1, how many they are, sum of memberships below b, sum of slopes by z)."""
    c, d = parts(b)
    lack, member, steep, count = 0.0, 0.0, 0.0, 0
    for start in range(0, len(x), CHUNK):
        short, small, rise, above = REAL(0.0), REAL(0.0), REAL(0.0), np.int32(0)
        for i in range(start, min(start + CHUNK, len(x))):
            z = scaled(x[i], c, d, s)
            rest, slope = tail(z)
            # A factor: with a condition, the sums would not run in vector registers
            over = REAL(0.0) if z < REAL(0.0) else REAL(1.0)
            short += over * rest
            small += (REAL(1.0) - over) * rest
            rise += slope
            above += np.int32(0) if z < REAL(0.0) else np.int32(1)
        lack += np.float64(short)
        member += np.float64(small)
        steep += np.float64(rise)
        count += above
    return lack, count, member, steep


@njit(**SUMS)
def of_finite(x, mask, masked, values, rest, out):
    """Copies the values of finite items that are present, and `rest` for others."""
    for i in range(len(x)):
        out[i] = values[i] if abs(x[i]) < np.inf and (not masked or mask[i]) else rest


@njit(**SUMS)
def tally(x, mask, masked):
    """How many items are finite, infinite above and below, and NaN."""
    count, above, below, nans = 0, 0, 0, 0
    for i in range(len(x)):
        v, here = x[i], 1 if not masked or mask[i] else 0
        count += here if abs(v) < np.inf else 0
        above += here if v == np.inf else 0
        below += here if v == -np.inf else 0
        nans += here if v != v else 0
    return count, above, below, nans


@njit(**SUMS)
def spread_of(x, count):
    """(least, most, mean, mean square deviation) of the finite items in one pass, the last two roughly."""
    least, most, total, square = np.inf, -np.inf, 0.0, 0.0
    first = np.float64(x[0]) if x[0] > -np.inf else 0.0
    for i in range(len(x)):
        v = np.float64(x[i])
        finite = v > -np.inf
        least, most = min(least, v if finite else np.inf), max(most, v)
        away = v - first if finite else 0.0
        total += away
        square += away * away
    mean = total / count
    return least, most, first + mean, max(square / count - mean * mean, 0.0)


@njit(**SUMS)
def geometric(low, high):
    if low < 0.0 and high > 0.0:
        return 0.0
    mean = math.sqrt(max(abs(low), 1e-300)) * math.sqrt(max(abs(high), 1e-300))
    return mean if high > 0.0 else -mean


@njit(**SUMS)
def root(x, count, k, s, reach):
    """(b, other, share): sum r(s (x - b)) = k for 0 < k < count finite items, others being -inf, by Newton in the logit
    of the mean, inside a bracket.

    Where a gap between items holds b, memberships are whole numbers up to tiny tails: those on both sides must balance, or
    the ratios of the slopes there, which are the derivatives by k, would be anyone's. Newton then goes by their logarithms.
    Where no b gives k, because neighbouring numbers lie too far apart, `share` of the memberships at the other end of the
    bracket and the rest of those at b do: tied items then share alike.
    """
    n = np.float64(count)
    steepness = max(np.float64(s), 1e-30)
    least, most, mean, square = spread_of(x, n)
    # Beyond the extremes even where the reach is too small to be seen beside them
    low, high = least - reach / steepness - 1e-12 * abs(least), most + reach / steepness + 1e-12 * abs(most)
    odds = math.log(k / (n - k))
    b = min(max(mean - 0.6 * odds * math.sqrt(square), least), most)
    if not (low < b < high):
        b = 0.5 * low + 0.5 * high
    width = high - low
    over, under = n, k
    for step in range(MOST):
        lack, above, member, rise = measure(x, b, s)
        tails, error = lack + member, (member - lack) + (above - k)
        total = k + error
        if error > 0.0:
            low, over = b, error
        else:
            high, under = b, -error
        if abs(error) <= ROUNDING * tails:
            return b, b, 0.0
        # Its own number: added to a huge b it would be lost, and the search would seem to be over
        move = np.nan
        if above == k and tails < GAP:
            if lack > 0.0 and member > 0.0 and rise > 0.0:
                move = 0.5 * math.log(member / lack) * tails / (rise * steepness)
        elif 0.0 < total < n and rise > 0.0:
            move = (math.log(total / (n - total)) - odds) * total * (n - total) / (n * rise * steepness)
        new = b + move
        if abs(move) * steepness <= TOLERANCE:
            new = min(max(new, low), high)
            return new, new, 0.0
        halve = False
        if step % 3 == 2:
            # Newton must halve the bracket in three steps, or bisection does
            halve = high - low > 0.5 * width
            width = high - low
        if halve or not (low < new < high):
            new = geometric(low, high) if step % 2 else 0.5 * low + 0.5 * high
            if not (low < new < high):
                new = 0.5 * low + 0.5 * high
        if not (low < new < high):
            break
        b = new
    return high, low, under / (over + under) if over + under > 0.0 else 0.0


@njit(**SUMS)
def memberships(x, b, s, out):
    c, d = parts(b)
    for i in range(len(x)):
        z = scaled(x[i], c, d, s)
        rest = tail(z)[0]
        out[i] = rest if z < REAL(0.0) else REAL(1.0) - rest


@njit(**SUMS)
def mix(p, other, share):
    for i in range(len(p)):
        p[i] = (REAL(1.0) - share) * p[i] + share * other[i]


@njit(**STRICT, cache=True)
def forward(begin, end, x, mask, masked, ks, k_step, s, reach, out, thresholds):
    """Rows begin..end. A threshold of -inf or inf says that all or none of the finite items are members."""
    n = x.shape[1]
    items, others = np.empty(n, x.dtype), np.empty(n, x.dtype)
    for row in range(begin, end):
        k, presence = ks[row * k_step], mask[row if masked else 0]
        count, above, below, nans = tally(x[row], presence, masked)
        line = x[row]
        if count < n:
            of_finite(x[row], presence, masked, x[row], -np.inf, items)
            line = items
        wanted = k - above
        b = np.inf if wanted <= 0.0 else -np.inf
        other, share = b, 0.0
        if nans or k != k:
            b = np.nan
        elif 0.0 < wanted < count:
            b, other, share = root(line, count, wanted, s, reach)
        thresholds[row] = b
        if b - b == 0.0:
            memberships(line, b, s, out[row])
        else:
            out[row] = b if b != b else (0.0 if b > 0.0 else 1.0)
        if share > 0.0:
            memberships(line, other, s, others)
            mix(out[row], others, REAL(share))
        share_above = min(max(k / max(above, 1), 0.0), 1.0)
        share_below = min(max((k - above - count) / max(below, 1), 0.0), 1.0)
        for i in range(n if count < n else 0):
            v = x[row, i]
            if masked and not mask[row, i]:
                out[row, i] = 0.0
            elif b == b and v - v != REAL(0.0):
                out[row, i] = share_above if v > REAL(0.0) else share_below


@njit(**SUMS)
def sums(x, grad, b, s):
    """Sums over a row of w, g w, u and g u: w the slope by x / s, u that by s."""
    c, d = parts(b)
    w_sum, gw_sum, u_sum, gu_sum = 0.0, 0.0, 0.0, 0.0
    for start in range(0, len(x), CHUNK):
        w_part, gw_part, u_part, gu_part = REAL(0.0), REAL(0.0), REAL(0.0), REAL(0.0)
        for i in range(start, min(start + CHUNK, len(x))):
            away = away_from(x[i], c, d)
            z = min(max(s * away, -FAR), FAR)
            slope = tail(z)[1]
            slope = slope if abs(z) < FAR else REAL(0.0)
            u = slope * away if slope > REAL(0.0) else REAL(0.0)
            w_part += slope
            gw_part += grad[i] * slope
            u_part += u
            gu_part += grad[i] * u
        w_sum += np.float64(w_part)
        gw_sum += np.float64(gw_part)
        u_sum += np.float64(u_part)
        gu_sum += np.float64(gu_part)
    return w_sum, gw_sum, u_sum, gu_sum


@njit(**SUMS)
def slopes(x, grad, b, s, mean, out):
    c, d = parts(b)
    for i in range(len(x)):
        z = scaled(x[i], c, d, s)
        slope = tail(z)[1]
        slope = slope if abs(z) < FAR else REAL(0.0)
        out[i] = s * slope * (grad[i] - mean)


@njit(**STRICT, cache=True)
def backward(begin, end, x, mask, masked, s, thresholds, grad, grad_x, grad_k, grad_s):
    n = x.shape[1]
    items, felt = np.empty(n, x.dtype), np.empty(n, x.dtype)
    for row in range(begin, end):
        b = thresholds[row]
        grad_k[row], grad_s[row] = 0.0, 0.0
        if b - b != 0.0:
            grad_x[row] = b if b != b else 0.0
            continue
        presence = mask[row if masked else 0]
        line, g = x[row], grad[row]
        if tally(x[row], presence, masked)[0] < n:
            of_finite(x[row], presence, masked, x[row], -np.inf, items)
            of_finite(x[row], presence, masked, grad[row], 0.0, felt)
            line, g = items, felt
        w, gw, u, gu = sums(line, g, b, s)
        mean = gw / w if w > 0.0 else 0.0
        grad_k[row], grad_s[row] = mean, gu - mean * u
        slopes(line, g, b, s, REAL(mean), grad_x[row])

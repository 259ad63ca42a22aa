"""Template of the Numba kernels of soft counts over pairs; `source.py` puts a sigmoid's `gate` before it."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
import numpy as np
from numba import float32 as REAL  # noqa: N812

from algonet.core.codegen.jit import njit


def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


#: Whether r(-z) = 1 - r(z).
SYMMETRIC = True

# --- template ---
#: Sums may be reordered: that is what lets them run in vector registers. NaN and infinities keep their meaning.
SUMS = {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy", "nogil": True}
FAR, INF = REAL(1e18), REAL(np.inf)
#: Pairs summed in their own precision before they are added in float64.
CHUNK = 2048


@njit(**SUMS)
def difference(a, b):
    """a - b; 0 for equal infinities."""
    return REAL(0.0) if a == b else a - b


@njit(**SUMS)
def scaled(d, s):
    """s d within +-FAR, where every sigmoid is flat; an infinite difference is beyond."""
    return min(max(s * d, -FAR), FAR)


@njit(**SUMS)
def chance(d, s):
    value = gate(scaled(d, s))[0]
    value = value if d == d else d
    return (REAL(1.0) if d > REAL(0.0) else REAL(0.0)) if abs(d) == INF else value


@njit(**SUMS)
def rise(z):
    slope = gate(z)[1]
    return slope if abs(z) < FAR else REAL(0.0)


@njit(**SUMS, cache=True)
def counts(rows, w_rows, ordered, s, first, last, begin, end, out):
    """Counts of items begin ... end in rows first ... last."""
    n = rows.shape[1]
    for row in range(first, last):
        x, w = rows[row], w_rows[row]
        for i in range(begin, end):
            a, y = x[i], w[i]
            total = 0.0
            for start in range(0, n, CHUNK):
                part = REAL(0.0)
                stop = min(start + CHUNK, n)
                if ordered:
                    for j in range(start, stop):
                        value = chance(difference(a, x[j]), s)
                        part += value if y > w[j] else REAL(0.0)
                else:
                    for j in range(start, stop):
                        value = chance(difference(a, x[j]), s)
                        part += w[j] * value if w[j] != REAL(0.0) else REAL(0.0)
                total += np.float64(part)
            if not ordered and y != REAL(0.0):
                total -= np.float64(y * chance(REAL(0.0), s))
            out[row, i] = REAL(total) if a == a else a


@njit(**SUMS)
def by_weight(own, other):
    """What a pair counts to its first item, and to its second one: the weight of the partner."""
    return other, own


@njit(**SUMS)
def by_order(own, other):
    """The same where pairs are chosen by the order of the weights. Factors, not conditions: those would keep sums out of
    vector registers."""
    return (REAL(1.0) if own > other else REAL(0.0)), (REAL(1.0) if other > own else REAL(0.0))


def pull_by(factors):
    @njit(**SUMS)
    def pull(x, w, grad, a, y, g, s, start, stop):
        """(what an item feels from others as the first and as the second of its pairs, what the steepness gets)."""
        by_x, by_s = REAL(0.0), REAL(0.0)
        for j in range(start, stop):
            d = difference(a, x[j])
            z = scaled(d, s)
            out = rise(z)
            back = out if SYMMETRIC else rise(-z)
            ahead, behind = factors(y, w[j])
            first = g * ahead * out
            by_x += first - grad[j] * behind * back
            by_s += first * (d if abs(z) < FAR else REAL(0.0))
        return by_x, by_s

    return pull


weighted_pull, ordered_pull = pull_by(by_weight), pull_by(by_order)


@njit(**SUMS)
def weight_pull(x, grad, a, s, start, stop):
    """What the weight of an item gets from the counts of others."""
    by_w = REAL(0.0)
    for j in range(start, stop):
        by_w += grad[j] * chance(difference(x[j], a), s)
    return by_w


@njit(**SUMS, cache=True)
def slopes(rows, w_rows, grads, ordered, weighted, s, first, last, begin, end, grad_x, grad_w, grad_s):
    """Gradients of items begin ... end in rows first ... last, `weighted` of their weights too."""
    n = rows.shape[1]
    for row in range(first, last):
        x, w, grad = rows[row], w_rows[row], grads[row]
        for i in range(begin, end):
            a, y, g = x[i], w[i], grad[i]
            by_x, by_w, by_s = 0.0, 0.0, 0.0
            for start in range(0, n, CHUNK):
                stop = min(start + CHUNK, n)
                if ordered:
                    part_x, part_s = ordered_pull(x, w, grad, a, y, g, s, start, stop)
                else:
                    part_x, part_s = weighted_pull(x, w, grad, a, y, g, s, start, stop)
                by_x += np.float64(part_x)
                by_s += np.float64(part_s)
                if weighted:
                    by_w += np.float64(weight_pull(x, grad, a, s, start, stop))
            # Infinite items take part crisply: ties among them have no slope
            grad_x[row, i] = REAL(0.0) if abs(a) == INF else REAL(by_x) * s
            grad_s[row, i] = by_s
            if weighted:
                grad_w[row, i] = REAL(by_w - np.float64(g * chance(REAL(0.0), s)))

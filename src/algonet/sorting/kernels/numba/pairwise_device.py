"""Template of the Numba kernels of soft counts over pairs; `pairwise.py` puts a sigmoid's `gate` before it."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
import numpy as np
from numba import float32 as REAL  # noqa: N812

from algonet.core.codegen.jit import njit


def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


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
def rise(d, s):
    z = scaled(d, s)
    slope = gate(z)[1]
    return slope if abs(z) < FAR else REAL(0.0)


@njit(**SUMS, cache=True)
def counts(x, w, ordered, s, begin, end, out):
    n = len(x)
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
        out[i] = REAL(total) if a == a else a


@njit(**SUMS, cache=True)
def slopes(x, w, grad, ordered, symmetric, s, begin, end, grad_x, grad_w, grad_s):
    """Gradients of items begin..end: each collects what it feels as the first and as the second of its pairs."""
    n = len(x)
    for i in range(begin, end):
        a, y, g = x[i], w[i], grad[i]
        by_x, by_w, by_s = 0.0, 0.0, 0.0
        for start in range(0, n, CHUNK):
            part_x, part_w, part_s = REAL(0.0), REAL(0.0), REAL(0.0)
            for j in range(start, min(start + CHUNK, n)):
                d = difference(a, x[j])
                out = rise(d, s)
                back = out if symmetric else rise(-d, s)
                if ordered:
                    v, u = (REAL(1.0) if y > w[j] else REAL(0.0)), (REAL(1.0) if w[j] > y else REAL(0.0))
                else:
                    v, u = w[j], y
                first = g * out * v if v != REAL(0.0) else REAL(0.0)
                second = grad[j] * back * u if u != REAL(0.0) else REAL(0.0)
                part_x += first - second
                part_s += first * d if first != REAL(0.0) else REAL(0.0)
            if not ordered:
                for j in range(start, min(start + CHUNK, n)):
                    part_w += grad[j] * chance(difference(x[j], a), s)
            by_x += np.float64(part_x)
            by_w += np.float64(part_w)
            by_s += np.float64(part_s)
        if not ordered:
            by_w -= np.float64(g * chance(REAL(0.0), s))
        # Infinite items take part crisply: ties among them have no slope
        grad_x[i] = REAL(0.0) if abs(a) == INF else REAL(by_x) * s
        grad_w[i] = REAL(by_w)
        grad_s[i] = by_s

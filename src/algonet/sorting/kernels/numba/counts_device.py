"""Template of the Numba kernels of smooth counts and their inverse; `source.py` puts a sigmoid's `gate` before it.

All numbers are float64; a sum over pairs evaluates the sigmoid in the precision that is asked for. See `../../counts.py`.
"""

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
FAR = REAL(1e18)
#: Where the search ends: an error this small, or a step this short.
ERROR, STEP = (2e-8, 1e-8) if REAL.bitwidth == 32 else (1e-15, 1e-15)
#: Nanoseconds: a sum over pairs to begin with, each pair, a number put on or read from the grid, a node, a product of the
#: convolution.
SUM, PAIR, SPLINE, NODE, PRODUCT = 50.0, (2.0 if REAL.bitwidth == 32 else 8.0), 12.0, 20.0, 0.2
#: Pairs are evaluated some six times in the search for a root.
SEARCH = 6.0


@njit(**SUMS)
def basis(t):
    """Weights of the six nodes around a number at t between the third and the fourth, 120 times."""
    r = 1.0 - t
    t2 = t * t
    t4 = t2 * t2
    r2 = r * r
    return (
        r2 * r2 * r,
        26.0 + t * (-50.0 + t * (20.0 + t * (20.0 + t * (-20.0 + 5.0 * t)))),
        66.0 + t2 * (-60.0 + t2 * (30.0 - 10.0 * t)),
        66.0 + r2 * (-60.0 + r2 * (30.0 - 10.0 * r)),
        1.0 + t * (5.0 + t * (10.0 + t * (10.0 + t * (5.0 - 5.0 * t)))),
        t4 * t,
    )


@njit(**SUMS)
def piece(field, i):
    """The spline between nodes i + 2 and i + 3 as a polynomial in t."""
    a, b, c, d, e, f = field[i], field[i + 1], field[i + 2], field[i + 3], field[i + 4], field[i + 5]
    return (
        (a + 26.0 * b + 66.0 * c + 26.0 * d + e) / 120.0,
        (e - a + 10.0 * (d - b)) / 24.0,
        (a + e + 2.0 * (b + d) - 6.0 * c) / 12.0,
        (e - a + 2.0 * (b - d)) / 12.0,
        (a + e - 4.0 * (b + d) + 6.0 * c) / 24.0,
        (f - a + 5.0 * (b - e) + 10.0 * (d - c)) / 120.0,
    )


@njit(**SUMS)
def spread(x, w, least, per, grid):
    grid[:] = 0.0
    for j in range(len(x)):
        u = (x[j] - least) * per
        i = int(u)
        a, b, c, d, e, f = basis(u - i)
        mass = w[j] / 120.0
        grid[i] += mass * a
        grid[i + 1] += mass * b
        grid[i + 2] += mass * c
        grid[i + 3] += mass * d
        grid[i + 4] += mass * e
        grid[i + 5] += mass * f


@njit(**SUMS)
def dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(**SUMS)
def convolve(grid, table, first, field):
    """field[b] = sum over a of grid[a] K[b + first - a]; beyond the table K is 0 and 1. `table` is K from its end."""
    half, count = len(table) // 2, len(grid)
    below, passed = 0.0, 0
    for b in range(len(field)):
        centre = b + first
        start, stop = max(0, centre - half), min(count, centre + half + 1)
        while passed < min(start, count):
            below += grid[passed]
            passed += 1
        field[b] = below
        if start < stop:
            field[b] += dot(grid[start:stop], table[start + half - centre : stop + half - centre])


@njit(**SUMS)
def bounds(x):
    least, most = x[0], x[0]
    for i in range(len(x)):
        least, most = min(least, x[i]), max(most, x[i])
    return least, most


@njit(**SUMS)
def layout(x, low, high, per, half):
    """(least, nodes of items, first node and nodes of points between low and high, cost)."""
    least, most = bounds(x)
    if not (abs(most - least) * per < 1e9 and abs(high - least) * per < 1e9 and abs(low - least) * per < 1e9):
        return least, 0, 0, 0, np.inf
    items = int((most - least) * per) + 6
    first = int(np.floor((low - least) * per))
    points = int(np.floor((high - least) * per)) - first + 6
    cost = NODE * points + PRODUCT * np.float64(points) * min(items, 2 * half + 1) + SPLINE * len(x)
    return least, items, first, points, cost


@njit(**SUMS)
def pairs(y, x, w):
    """(sum of w r(y - x), sum of w r'(y - x))."""
    value, slope = 0.0, 0.0
    for j in range(len(x)):
        z = REAL(y - x[j])
        z = min(max(z, -FAR), FAR)
        v, r = gate(z)
        value += w[j] * np.float64(v)
        slope += w[j] * np.float64(r)
    return value, slope


@njit(**SUMS)
def count_row(y, x, w, per, table, value, slope):
    """S and S' at finite points y."""
    if not len(y) or not len(x):
        value[:], slope[:] = 0.0, 0.0
        return
    half = len(table) // 2
    low, high = bounds(y)
    least, items, first, points, cost = layout(x, low, high, per, half)
    if per == 0.0 or cost + SPLINE * len(y) > (SUM + PAIR * np.float64(len(x))) * len(y):
        for i in range(len(y)):
            value[i], slope[i] = pairs(y[i], x, w)
        return
    grid, field = np.empty(items), np.empty(points)
    spread(x, w, least, per, grid)
    convolve(grid, table, first, field)
    for i in range(len(y)):
        u = (y[i] - least) * per - first
        cell = int(u)
        t = u - cell
        a, b, c, d, e, f = piece(field, cell)
        value[i] = a + t * (b + t * (c + t * (d + t * (e + t * f))))
        slope[i] = (b + t * (2.0 * c + t * (3.0 * d + t * (4.0 * e + t * 5.0 * f)))) * per


@njit(**SUMS)
def finite_points(y, near):
    """Copies y with 0 for what is not finite; whether all of it was."""
    whole = True
    for i in range(len(y)):
        fine = abs(y[i]) < np.inf
        near[i] = y[i] if fine else 0.0
        whole = whole and fine
    return whole


@njit(**SUMS, cache=True)
def counts(begin, end, y, x, w, per, table, out):
    m, channels = y.shape[1], w.shape[2]
    near, value, slope, column = np.empty(m), np.empty(m), np.empty(m), np.empty(x.shape[1])
    for row in range(begin, end):
        whole = finite_points(y[row], near)
        for c in range(channels):
            total = 0.0
            for j in range(len(column)):
                column[j] = w[row, j, c]
                total += column[j]
            count_row(near, x[row], column, per, table, value, slope)
            for i in range(m):
                point = y[row, i]
                if whole or abs(point) < np.inf:
                    out[row, i, c] = value[i]
                else:
                    out[row, i, c] = point if point != point else (total if point > 0.0 else 0.0)


@njit(**SUMS, cache=True)
def count_slopes(begin, end, y, x, w, grad, per, table, grad_y, grad_x, grad_w):
    """Gradients of `counts`: those by items and weights are counts of the points, seen from the items: r(-x - (-y))."""
    m, n, channels = y.shape[1], x.shape[1], w.shape[2]
    near, value, slope, g = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    column, back, back_slope = np.empty(n), np.empty(n), np.empty(n)
    for row in range(begin, end):
        whole = finite_points(y[row], near)
        mirrored = -near
        opposite = -x[row]
        grad_y[row], grad_x[row] = 0.0, 0.0
        for c in range(channels):
            for j in range(n):
                column[j] = w[row, j, c]
            count_row(near, x[row], column, per, table, value, slope)
            passed = 0.0
            for i in range(m):
                g[i] = grad[row, i, c]
                if not (whole or abs(y[row, i]) < np.inf):
                    passed += g[i] if y[row, i] > 0.0 else 0.0
                    g[i] = 0.0
                grad_y[row, i] += g[i] * slope[i]
            count_row(opposite, mirrored, g, per, table, back, back_slope)
            for j in range(n):
                grad_w[row, j, c] = back[j] + passed
                grad_x[row, j] -= column[j] * back_slope[j]


NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@njit(**SUMS)
def newton(low, high, y, k, x, w, cell, spline):
    """(y, slope there): a step of Newton where it stays between low and high, else half of the way. With `spline`, y and the
    result are places t in a cell with this polynomial."""
    a, b, c, d, e, f = cell
    slope = 0.0
    for _ in range(100):
        if spline:
            value = a + y * (b + y * (c + y * (d + y * (e + y * f))))
            slope = b + y * (2.0 * c + y * (3.0 * d + y * (4.0 * e + y * 5.0 * f)))
        else:
            value, slope = pairs(y, x, w)
        error = value - k
        if error > 0.0:
            high = y
        else:
            low = y
        # In a gap between items S is flat: any place there is as good
        if abs(error) <= ERROR * min(max(slope, 1e-6), 1.0) or not (high - low > STEP):
            break
        step = -error / slope if slope > 0.0 else np.inf
        new = y + step
        if abs(step) <= STEP:
            y = min(max(new, low), high)
            break
        if not (low < new < high):
            new = 0.5 * low + 0.5 * high
            if not (low < new < high):
                break
        y = new
    return y, slope


@njit(**SUMS)
def cell_of(values, k, cell):
    """The last node whose value is not above k: a few steps from `cell`, else by halving."""
    for _ in range(8):
        if values[cell] > k:
            cell -= 1
        elif values[cell + 1] <= k:
            cell += 1
        else:
            return cell
    low, high = (0, cell) if values[cell] > k else (cell, len(values) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if values[middle] <= k else (low, middle)
    return low


@njit(**SUMS)
def root_in_cell(cell, k, low, high, z, mass):
    """(t, slope): Newton's method without a look at where it goes, which nearly always is to the root."""
    a, b, c, d, e, f = cell
    t = (k - low) / (high - low)
    t = t if 0.0 < t < 1.0 else 0.5
    slope, error = 1.0, 0.0
    for _ in range(5):
        slope = b + t * (2.0 * c + t * (3.0 * d + t * (4.0 * e + t * 5.0 * f)))
        error = a + t * (b + t * (c + t * (d + t * (e + t * f)))) - k
        t = min(max(t - error / max(slope, 1e-12), 0.0), 1.0)
    if abs(error) <= STEP * slope:
        return t, slope
    return newton(0.0, 1.0, t, k, z, mass, cell, True)


@njit(**SUMS, cache=True)
def inverse(begin, end, x, w, k, per, margin, table, out, slopes):
    """Points y with S(y) = k, infinite where there is none, and S' there."""
    m, half = k.shape[1], len(table) // 2
    items, weights = np.empty(x.shape[1]), np.empty(x.shape[1])
    for row in range(begin, end):
        n, total = 0, 0.0
        for j in range(x.shape[1]):
            if w[row, j] != 0.0:
                items[n], weights[n] = x[row, j], w[row, j]
                total += w[row, j]
                n += 1
        z, mass = items[:n], weights[:n]
        spoiled = False
        for j in range(n):
            spoiled = spoiled or not (abs(z[j]) < np.inf)
        if spoiled or not n:
            for i in range(m):
                out[row, i] = np.nan if spoiled else (np.inf if k[row, i] > 0.0 else -np.inf)
                slopes[row, i] = 0.0
            continue
        least, most = bounds(z)
        low, high = least - margin, most + margin
        _, nodes, first, points, cost = layout(z, low, high, per, half)
        splined = per > 0.0 and cost + 4.0 * SPLINE * m <= SEARCH * (SUM + PAIR * np.float64(n)) * m
        field, values = np.empty(points if splined else 0), np.empty(points if splined else 0)
        if splined:
            grid = np.empty(nodes)
            spread(z, mass, least, per, grid)
            convolve(grid, table, first, field)
            for b in range(points - 5):
                values[b] = (
                    field[b] + 26.0 * field[b + 1] + 66.0 * field[b + 2] + 26.0 * field[b + 3] + field[b + 4]
                ) / 120.0
            values[0], values[points - 5 :] = -np.inf, np.inf
        cell, y, slope, before = 0, 0.5 * low + 0.5 * high, 0.0, 0.0
        for i in range(m):
            wanted = k[row, i]
            if not (0.0 < wanted < total):
                out[row, i] = np.nan if wanted != wanted else (np.inf if wanted > 0.0 else -np.inf)
                slopes[row, i] = 0.0
                continue
            if splined:
                cell = cell_of(values, wanted, cell)
                t, slope = root_in_cell(piece(field, cell), wanted, values[cell], values[cell + 1], z, mass)
                out[row, i], slopes[row, i] = least + (cell + first + t) / per, slope * per
            else:
                guess = y + (wanted - before) / slope if slope > 0.0 else 0.5 * low + 0.5 * high
                guess = guess if low < guess < high else 0.5 * low + 0.5 * high
                y, slope = newton(low, high, guess, wanted, z, mass, NONE, False)
                out[row, i], slopes[row, i] = y, slope
            before = wanted


@njit(**SUMS, cache=True)
def inverse_slopes(begin, end, x, w, y, slopes, grad, per, table, grad_x, grad_k):
    """dy = (dk + sum_j w_j r'(y - x_j) dx_j) / S'(y): gradients are slopes of a count of the points, seen from the items."""
    m, n = y.shape[1], x.shape[1]
    near, value, slope = np.empty(m), np.empty(n), np.empty(n)
    for row in range(begin, end):
        finite_points(y[row], near)
        for i in range(m):
            near[i] = -near[i]
            grad_k[row, i] = grad[row, i] / slopes[row, i] if slopes[row, i] > 1e-290 else 0.0
        opposite = -x[row]
        for j in range(n):
            opposite[j] = opposite[j] if w[row, j] != 0.0 else near[0] if m else 0.0
        count_row(opposite, near, grad_k[row], per, table, value, slope)
        for j in range(n):
            grad_x[row, j] = w[row, j] * slope[j]

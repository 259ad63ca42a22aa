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


#: Whether rows may be put on a grid where that is faster; else pairs are added up, and there is less to compile.
GRIDS = True

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
#: Items that a sum over pairs takes at a time, and those of one turn of a loop in vector registers.
CHUNK, BLOCK = 1024, 32
#: Roots that are searched side by side.
TOGETHER = 64


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
        (a + 26.0 * b + 66.0 * c + 26.0 * d + e) * (1 / 120),
        (e - a + 10.0 * (d - b)) * (1 / 24),
        (a + e + 2.0 * (b + d) - 6.0 * c) * (1 / 12),
        (e - a + 2.0 * (b - d)) * (1 / 12),
        (a + e - 4.0 * (b + d) + 6.0 * c) * (1 / 24),
        (f - a + 5.0 * (b - e) + 10.0 * (d - c)) * (1 / 120),
    )


@njit(**SUMS)
def spline(cell, t):
    """(value, slope) at t of a piece."""
    a, b, c, d, e, f = cell
    value = a + t * (b + t * (c + t * (d + t * (e + t * f))))
    return value, b + t * (2.0 * c + t * (3.0 * d + t * (4.0 * e + t * 5.0 * f)))


@njit(**SUMS)
def spread(x, w, least, per, grid):
    grid[:] = 0.0
    for j in range(len(x)):
        u = (x[j] - least) * per
        i = int(u)
        a, b, c, d, e, f = basis(u - i)
        mass = w[j] * (1 / 120)
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
def room(n):
    """Space for n items, more where a loop would sum many of few one at a time: those beyond whole blocks of vectors."""
    return n if n > 8 * BLOCK or n % BLOCK < BLOCK // 2 else -(-n // BLOCK) * BLOCK


@njit(**SUMS)
def filled(x, size, rest):
    """x with `rest` behind it."""
    items = np.empty(size)
    for i in range(size):  # arrays that are assigned to slices bring a second of compiling, for an error's message
        items[i] = x[i] if i < len(x) else rest
    return items


@njit(**SUMS)
def by_channel(w, lines):
    """Copies w (n, channels) to the beginnings of lines (channels, at least n), with zeros behind it."""
    for c in range(w.shape[1]):
        for j in range(lines.shape[1]):
            lines[c, j] = w[j, c] if j < len(w) else 0.0


@njit(**SUMS)
def negated(x, out):
    for j in range(len(x)):
        out[j] = -x[j]


@njit(**SUMS)
def grid_cost(y, x, per, half):
    """Of S at the points y by the grid; without one, more than that of any pairs."""
    if per == 0.0:
        return np.inf
    low, high = bounds(y)
    return layout(x, low, high, per, half)[4] + SPLINE * len(y)


@njit(**SUMS)
def counted_on_grid(y, x, w, per, table, value, slope):
    """S and S' at finite points by the grid; False, and nothing done, where adding up pairs is faster."""
    half = len(table) // 2
    low, high = bounds(y)
    least, items, first, points, cost = layout(x, low, high, per, half)
    if per == 0.0 or cost + SPLINE * len(y) > (SUM + PAIR * np.float64(len(x))) * len(y):
        return False
    grid, field = np.empty(items), np.empty(points)
    spread(x, w, least, per, grid)
    convolve(grid, table, first, field)
    for i in range(len(y)):
        u = (y[i] - least) * per - first
        cell = int(u)
        value[i], rise = spline(piece(field, cell), u - cell)
        slope[i] = rise * per
    return True


@njit(**SUMS)
def count_row(y, x, w, per, table, value, slope):
    """S and S' at finite points y."""
    if not len(y) or not len(x):
        value[:], slope[:] = 0.0, 0.0
        return
    if GRIDS and counted_on_grid(y, x, w, per, table, value, slope):
        return
    size = room(len(x))
    items, weights = (x, w) if size == len(x) else (filled(x, size, x[0]), filled(w, size, 0.0))
    for i in range(len(y)):
        value[i], slope[i] = pairs(y[i], items, weights)


@njit(**SUMS)
def pair_slopes(y, x, w, g, grad_y, grad_x, grad_w):
    """Gradients of S (channels, m) at finite points, every pair evaluated once; w and grad_w are (channels, n)."""
    values, slopes = np.empty(CHUNK, REAL), np.empty(CHUNK, REAL)
    grad_y[:], grad_x[:], grad_w[:] = 0.0, 0.0, 0.0
    for start in range(0, len(x), CHUNK):
        part, pull = x[start : start + CHUNK], grad_x[start : start + CHUNK]
        for i in range(len(y)):
            for j in range(len(part)):
                z = REAL(y[i] - part[j])
                values[j], slopes[j] = gate(min(max(z, -FAR), FAR))
            felt = 0.0
            for c in range(len(g)):
                h, weights, sent = g[c, i], w[c, start : start + CHUNK], grad_w[c, start : start + CHUNK]
                for j in range(len(part)):
                    force = h * weights[j] * np.float64(slopes[j])
                    felt += force
                    pull[j] -= force
                    sent[j] += h * np.float64(values[j])
            grad_y[i] += felt


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
def counts(begin, end, y, x, w, out, per, table):
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
def count_slopes(begin, end, y, x, w, grad, grad_y, grad_x, grad_w, per, table):
    """Gradients of `counts`: those by items and weights are counts of the points, seen from the items: r(-x - (-y))."""
    m, n, channels = y.shape[1], x.shape[1], w.shape[2]
    near, value, slope, mirrored, opposite = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(n)
    size, half = room(n), len(table) // 2
    columns, back, back_slope = np.empty((channels, size)), np.empty((channels, size)), np.empty(size)
    g, passed = np.empty((channels, m)), np.empty(channels)
    for row in range(begin, end):
        whole = finite_points(y[row], near)
        by_channel(w[row], columns)
        by_channel(grad[row], g)
        for c in range(channels):
            passed[c] = 0.0
            for i in range(0 if whole else m):
                if not abs(y[row, i]) < np.inf:
                    passed[c] += g[c, i] if y[row, i] > 0.0 else 0.0
                    g[c, i] = 0.0
        together = True
        if GRIDS:
            negated(near, mirrored)
            negated(x[row], opposite)
            cost = grid_cost(near, x[row], per, half) + grid_cost(opposite, mirrored, per, half) if m and n else 0.0
            together = cost * channels > (SUM + PAIR * np.float64(n)) * m * (1.0 + 0.3 * channels)
        if together:
            pair_slopes(near, filled(x[row], size, x[row, 0]), columns, g, grad_y[row], back_slope, back)
            for j in range(n):
                grad_x[row, j] = back_slope[j]
        elif GRIDS:
            grad_y[row], grad_x[row] = 0.0, 0.0
            for c in range(channels):
                count_row(near, x[row], columns[c, :n], per, table, value, slope)
                count_row(opposite, mirrored, g[c], per, table, back[c, :n], back_slope[:n])
                for i in range(m):
                    grad_y[row, i] += g[c, i] * slope[i]
                for j in range(n):
                    grad_x[row, j] -= columns[c, j] * back_slope[j]
        for c in range(channels):
            for j in range(n):
                grad_w[row, j, c] = back[c, j] + passed[c]


NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@njit(**SUMS)
def newton(low, high, y, k, x, w, cell, on_grid):
    """(y, slope there): a step of Newton where it stays between low and high, else half of the way. With `on_grid`, y and the
    result are places t in a cell with this polynomial."""
    slope = 0.0
    for _ in range(100):
        value, slope = spline(cell, y) if on_grid else pairs(y, x, w)
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
def roots_in_cells(count, cells, t, error, slope):
    """Newton's method side by side in vector registers, without a look at where it goes: nearly always to the roots."""
    for i in range(count):
        cell = cells[0, i], cells[1, i], cells[2, i], cells[3, i], cells[4, i], cells[5, i]
        u, rise, off = t[i], 1.0, 0.0
        for _ in range(5):
            off, rise = spline(cell, u)
            u = min(max(u - off / max(rise, 1e-12), 0.0), 1.0)
        t[i], error[i], slope[i] = u, off, rise


@njit(**SUMS)
def roots_on_grid(x, w, k, total, low, high, per, table, y, slopes):
    """Points with S(y) = k, and S' there, by the grid; False, and nothing done, where adding up pairs is faster."""
    m, half = len(k), len(table) // 2
    least, nodes, first, points, cost = layout(x, low, high, per, half)
    if per == 0.0 or cost + 4.0 * SPLINE * m > SEARCH * (SUM + PAIR * np.float64(len(x))) * m:
        return False
    grid, field, values = np.empty(nodes), np.empty(points), np.empty(points)
    spread(x, w, least, per, grid)
    convolve(grid, table, first, field)
    for b in range(points - 5):
        values[b] = (field[b] + 26.0 * field[b + 1] + 66.0 * field[b + 2] + 26.0 * field[b + 3] + field[b + 4]) * (
            1 / 120
        )
    values[0], values[points - 5 :] = -np.inf, np.inf
    cells, places, which = np.empty((6, TOGETHER)), np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    t, errors, rises = np.empty(TOGETHER), np.empty(TOGETHER), np.empty(TOGETHER)
    cell = np.int64(0)
    for start in range(0, m, TOGETHER):
        count = 0
        for i in range(start, min(start + TOGETHER, m)):
            wanted = k[i]
            if 0.0 < wanted < total:
                cell = cell_of(values, wanted, cell)
                a, b, c, d, e, f = piece(field, cell)
                cells[0, count], cells[1, count], cells[2, count] = a - wanted, b, c
                cells[3, count], cells[4, count], cells[5, count] = d, e, f
                guess = (wanted - values[cell]) / (values[cell + 1] - values[cell])
                t[count], places[count], which[count] = guess if 0.0 < guess < 1.0 else 0.5, cell, i
                count += 1
        roots_in_cells(count, cells, t, errors, rises)
        for found in range(count):
            i, u, slope = which[found], t[found], rises[found]
            if not (abs(errors[found]) <= STEP * slope):
                u, slope = newton(0.0, 1.0, u, k[i], x, w, piece(field, places[found]), True)
            y[i], slopes[i] = least + (places[found] + first + u) / per, slope * per
    return True


@njit(**SUMS, cache=True)
def inverse(begin, end, x, w, k, out, slopes, per, table, margin):
    """Points y with S(y) = k, infinite where there is none, and S' there. No count from 1 / n of the weights on, n at least 3,
    lies further beyond the items than `margin`."""
    m, most_items = k.shape[1], max(x.shape[1], 3)
    items, weights = np.empty(x.shape[1]), np.empty(x.shape[1])
    for row in range(begin, end):
        n, total, spoiled = 0, 0.0, False
        for j in range(x.shape[1]):
            if w[row, j] != 0.0:
                items[n], weights[n] = x[row, j], w[row, j]
                total += w[row, j]
                spoiled = spoiled or not (abs(x[row, j]) < np.inf)
                n += 1
        z, mass, smallest = items[:n], weights[:n], 0.5 * total
        for i in range(m):
            wanted = k[row, i]
            if 0.0 < wanted < total:
                smallest = min(smallest, wanted, total - wanted)
            slopes[row, i] = 0.0
            out[row, i] = np.nan if spoiled or wanted != wanted else (np.inf if wanted > 0.0 else -np.inf)
        if spoiled or not n:
            continue
        least, most = bounds(z)
        low, high, step = least - margin, most + margin, margin
        if smallest * most_items < 0.999999 * total:
            while pairs(low, z, mass)[0] > smallest and step < 1e17:
                step *= 2.0
                low -= step
            while total - pairs(high, z, mass)[0] > smallest and step < 1e17:
                step *= 2.0
                high += step
        if GRIDS and roots_on_grid(z, mass, k[row], total, low, high, per, table, out[row], slopes[row]):
            continue
        y, slope, before = 0.5 * low + 0.5 * high, 0.0, 0.0
        for i in range(m):
            wanted = k[row, i]
            if 0.0 < wanted < total:
                guess = y + (wanted - before) / slope if slope > 0.0 else 0.5 * low + 0.5 * high
                guess = guess if low < guess < high else 0.5 * low + 0.5 * high
                y, slope = newton(low, high, guess, wanted, z, mass, NONE, False)
                out[row, i], slopes[row, i], before = y, slope, wanted


@njit(**SUMS, cache=True)
def inverse_slopes(begin, end, x, w, y, slopes, grad, grad_x, grad_k, per, table):
    """dy = (dk + sum_j w_j r'(y - x_j) dx_j) / S'(y): gradients are slopes of a count of the points, seen from the items."""
    m, n = y.shape[1], x.shape[1]
    near, value, slope, opposite = np.empty(m), np.empty(n), np.empty(n), np.empty(n)
    for row in range(begin, end):
        finite_points(y[row], near)
        negated(near, near)
        for i in range(m):
            grad_k[row, i] = grad[row, i] / slopes[row, i] if slopes[row, i] > 1e-290 else 0.0
        for j in range(n):
            opposite[j] = -x[row, j] if w[row, j] != 0.0 else near[0] if m else 0.0
        count_row(opposite, near, grad_k[row], per, table, value, slope)
        for j in range(n):
            grad_x[row, j] = w[row, j] * slope[j]

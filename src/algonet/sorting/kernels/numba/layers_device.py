"""Template of the Numba kernels: `host.py` loads it once with REAL = float32 and once with float64.

Items lie as x[item, lane]: a lane is a row, so that the loops over lanes run in vector registers whatever the network.
With few rows there is one lane, and the loops run over the pairs of a layer instead. An exchange is three steps: `meet`
takes differences, `weigh` turns them into alpha and its slope, `mix` applies them. What backward needs of a layer is
kept in rows of `d`, `alpha` and `slope`, one per comparator. The sigmoid comes in by the address of its compiled `weigh`
(see `weigh.py`), so that a new one compiles in a moment.
"""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
import numpy as np
from numba import float32 as REAL  # noqa: N812
from numba import njit

from algonet.core.codegen.numba_math import where

from .weigh import call_at

# --- template ---
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
INF = REAL(np.inf)


@njit(**OPTIONS)
def difference(a, b):
    """b - a; infinite where the order is decided crisply, 0 for equal infinities, NaN only where an item is."""
    return where(a == b, REAL(0.0), b - a)


@njit(**OPTIONS)
def gather(x, items, out):
    for k in range(len(items)):
        out[k] = x[items[k]]


@njit(**OPTIONS)
def scatter(x, items, values):
    for k in range(len(items)):
        x[items[k]] = values[k]


@njit(**OPTIONS)
def meet(x, first, second, low, high, d, c, ends):
    if x.shape[1] == 1:
        # One lane: the loops run over the pairs, which are first put side by side in `ends`
        row, out, p, q = x.reshape(-1), d.reshape(-1)[c:], ends[0], ends[1]
        gather(row, first[low:high], p)
        gather(row, second[low:high], q)
        for k in range(high - low):
            out[k] = difference(p[k], q[k])
        return
    for k in range(low, high):
        f, g = first[k], second[k]
        for w in range(x.shape[1]):
            d[c, w] = difference(x[f, w], x[g, w])
        c += 1


@njit(**OPTIONS)
def part(d, need, layer_need, low, high, lengths, c, steepness):
    """Comparators that a short row does not have leave their items in order."""
    apart = where(steepness >= REAL(0.0), INF, -INF)
    for k in range(low, high):
        least = max(need[k], layer_need)
        for w in range(d.shape[1]):
            d[c, w] = where(lengths[w] >= least, d[c, w], apart)
        c += 1


@njit(**OPTIONS)
def weigh(sigmoid, d, alpha, slope, low, high, steepness):
    """alpha and its slope of comparators low..high, by the function at the address `sigmoid`."""
    lanes = d.shape[1]
    skip = low * lanes * d.itemsize
    places = d.ctypes.data + skip, alpha.ctypes.data + skip, slope.ctypes.data + skip
    call_at(sigmoid, places[0], places[1], places[2], (high - low) * lanes, steepness)


@njit(**OPTIONS)
def blend(own, other, alpha):
    """The item that stays in place with probability alpha; exact at 0 and 1, where 0 times infinity is not 0."""
    mean = alpha * own + (REAL(1.0) - alpha) * other
    return where(alpha == REAL(1.0), own, where(alpha == REAL(0.0), other, mean))


@njit(**OPTIONS)
def mix(x, first, second, low, high, alpha, c, ends):
    if x.shape[1] == 1:
        row, share, p, q = x.reshape(-1), alpha.reshape(-1)[c:], ends[0], ends[1]
        for k in range(high - low):
            a, b, s = p[k], q[k], share[k]
            p[k] = blend(a, b, s)
            q[k] = blend(b, a, s)
        scatter(row, first[low:high], p)
        scatter(row, second[low:high], q)
        return
    for k in range(low, high):
        f, g = first[k], second[k]
        for w in range(x.shape[1]):
            a, b, s = x[f, w], x[g, w], alpha[c, w]
            x[f, w] = blend(a, b, s)
            x[g, w] = blend(b, a, s)
        c += 1


@njit(**OPTIONS)
def carry(p, first, second, low, high, alpha, drop, c, place):
    """A payload channel through one layer. drop: p_first - p_second before it, kept at row `place`."""
    lanes = p.shape[1]
    for k in range(low, high):
        f, g = first[k], second[k]
        for w in range(lanes):
            a, b, s = p[f, w], p[g, w], alpha[c, w]
            drop[place, w] = a - b
            p[f, w] = s * a + (REAL(1.0) - s) * b
            p[g, w] = s * b + (REAL(1.0) - s) * a
        c += 1
        place += 1


@njit(**OPTIONS)
def carry_back(h, first, second, low, high, alpha, drop, felt, c):
    """The gradient of a payload channel back through one layer; what alpha feels of it is added to `felt`."""
    lanes = h.shape[1]
    for k in range(low, high):
        f, g = first[k], second[k]
        for w in range(lanes):
            a, b, s = h[f, w], h[g, w], alpha[c, w]
            felt[c, w] += (a - b) * drop[c, w]
            h[f, w] = s * a + (REAL(1.0) - s) * b
            h[g, w] = s * b + (REAL(1.0) - s) * a
        c += 1


@njit(**OPTIONS)
def mix_back(g, first, second, low, high, alpha, slope, d, felt, payload, steepness, c, ends):
    """The gradient of the items back through one layer. Leaves in `d` what the steepness feels of each exchange."""
    if g.shape[1] == 1:
        row, share, rise, gap = g.reshape(-1), alpha.reshape(-1)[c:], slope.reshape(-1)[c:], d.reshape(-1)[c:]
        p, q = ends[0], ends[1]
        gather(row, first[low:high], p)
        gather(row, second[low:high], q)
        more = felt.reshape(-1)[c if payload else 0 :]
        for k in range(high - low):
            a, b, s = p[k], q[k], share[k]
            push = (b - a) * (rise[k] * gap[k])
            if payload:
                push += more[k] * rise[k]
            gap[k] *= push
            push *= steepness
            p[k] = s * a + (REAL(1.0) - s) * b - push
            q[k] = s * b + (REAL(1.0) - s) * a + push
        scatter(row, first[low:high], p)
        scatter(row, second[low:high], q)
        return
    for k in range(low, high):
        i, j = first[k], second[k]
        if payload:
            for w in range(g.shape[1]):
                a, b, s = g[i, w], g[j, w], alpha[c, w]
                push = (b - a) * (slope[c, w] * d[c, w]) + felt[c, w] * slope[c, w]
                d[c, w] *= push
                push *= steepness
                g[i, w] = s * a + (REAL(1.0) - s) * b - push
                g[j, w] = s * b + (REAL(1.0) - s) * a + push
        else:
            for w in range(g.shape[1]):
                a, b, s = g[i, w], g[j, w], alpha[c, w]
                push = (b - a) * (slope[c, w] * d[c, w])
                d[c, w] *= push
                push *= steepness
                g[i, w] = s * a + (REAL(1.0) - s) * b - push
                g[j, w] = s * b + (REAL(1.0) - s) * a + push
        c += 1


@njit(**OPTIONS)
def total(d, count):
    """The sum of the first `count` rows, in sixteen strands."""
    flat = d.reshape(-1)[: count * d.shape[1]]
    whole = len(flat) // 16
    strands = np.zeros(16, d.dtype)
    for k in range(whole):
        for w in range(16):
            strands[w] += flat[16 * k + w]
    for j in range(16 * whole, len(flat)):
        strands[0] += flat[j]
    return strands.sum()


@njit(**OPTIONS)
def fetch(block, rows, begin):
    """Rows of the input into lanes; lanes beyond the last row repeat it."""
    for w in range(block.shape[1]):
        row = min(begin + w, rows.shape[0] - 1)
        for i in range(block.shape[0]):
            block[i, w] = rows[row, i]


@njit(**OPTIONS)
def put(rows, block, begin):
    for w in range(min(block.shape[1], rows.shape[0] - begin)):
        for i in range(block.shape[0]):
            rows[begin + w, i] = block[i, w]


@njit(**OPTIONS)
def fetch_channels(block, rows, begin):
    for w in range(block.shape[2]):
        row = min(begin + w, rows.shape[0] - 1)
        for i in range(block.shape[1]):
            for j in range(block.shape[0]):
                block[j, i, w] = rows[row, i, j]


@njit(**OPTIONS)
def put_channels(rows, block, begin):
    for w in range(min(block.shape[2], rows.shape[0] - begin)):
        for i in range(block.shape[1]):
            for j in range(block.shape[0]):
                rows[begin + w, i, j] = block[j, i, w]


@njit(**OPTIONS)
def span(start, stop, low, high):
    """How many comparators layers low..high have."""
    count = 0
    for layer in range(low, high):
        count += stop[layer] - start[layer]
    return count


@njit(**OPTIONS)
def advance(x, p, table, low, high, keep, d, alpha, slope, drop, lengths, masked, sigmoid, steepness, ends):
    """Layers low..high on items and payload; with `keep` each comparator has its own row of d, alpha and slope."""
    first, second, need, start, stop, layer_need = table
    c = 0
    for layer in range(low, high):
        i, j = start[layer], stop[layer]
        meet(x, first, second, i, j, d, c, ends)
        if masked:
            part(d, need, layer_need[layer], i, j, lengths, c, steepness)
        weigh(sigmoid, d, alpha, slope, c, c + j - i, steepness)
        mix(x, first, second, i, j, alpha, c, ends)
        for channel in range(p.shape[0]):
            carry(p[channel], first, second, i, j, alpha, drop, c, 0)
        if keep:
            c += j - i


@njit(**OPTIONS)
def block(work, at, a, b):
    """(a x b array out of the workspace, where the next one begins)."""
    return work[at : at + a * b].reshape(a, b), at + a * b


@njit(**OPTIONS, cache=True)
def forward(rows, payload, lengths, masked, sigmoid, steepness, table, values, moved, begin, end, lanes, work):
    """Rows begin..end, `lanes` at a time. Workspace: (n (1 + channels) + 3 (n // 2 + 1)) lanes + 2 (n // 2 + 1)."""
    n, channels, half = rows.shape[1], payload.shape[2], rows.shape[1] // 2 + 1
    x, at = block(work, 0, n, lanes)
    p, at = block(work, at, channels * n, lanes)
    d, at = block(work, at, half, lanes)
    alpha, at = block(work, at, half, lanes)
    slope, at = block(work, at, half, lanes)
    ends, at = block(work, at, 2, half)
    p = p.reshape(channels, n, lanes)
    here = np.zeros(lanes, np.int32)
    for row in range(begin, end, lanes):
        fetch(x, rows, row)
        fetch_channels(p, payload, row)
        if masked:
            for w in range(lanes):
                here[w] = lengths[min(row + w, rows.shape[0] - 1)]
        advance(x, p, table, 0, len(table[3]), False, d, alpha, slope, d, here, masked, sigmoid, steepness, ends)
        put(values, x, row)
        put_channels(moved, p, row)


@njit(**OPTIONS, cache=True)
def backward(
    rows, payload, lengths, masked, sigmoid, steepness, table, grads, grad_moved, grad_rows, grad_payload, by_steepness,
    begin, end, lanes, segment, values_too, steep, work,
):  # fmt: skip
    """Gradients of rows begin..end: checkpoints before each segment of layers, then segment by segment backwards.

    Workspace, with s segments: ((s + 2) n (1 + channels) + (5 with channels, else 3) segment (n // 2 + 1) + 2) lanes + n + 2.
    """
    first, second, _, start, stop, _ = table
    n, channels, depth, half = rows.shape[1], payload.shape[2], len(start), rows.shape[1] // 2 + 1
    segments = (depth + segment - 1) // segment
    most = segment * half
    kept, at = block(work, 0, segments * n, lanes)
    kept_p, at = block(work, at, segments * channels * n, lanes)
    x, at = block(work, at, n, lanes)
    p, at = block(work, at, channels * n, lanes)
    g, at = block(work, at, n, lanes)
    h, at = block(work, at, channels * n, lanes)
    d, at = block(work, at, most, lanes)
    alpha, at = block(work, at, most, lanes)
    slope, at = block(work, at, most, lanes)
    drop, at = block(work, at, most if channels else 1, lanes)
    felt, at = block(work, at, most if channels else 1, lanes)
    ends, at = block(work, at, 2, half)
    kept, kept_p = kept.reshape(segments, n, lanes), kept_p.reshape(segments, channels, n, lanes)
    p, h = p.reshape(channels, n, lanes), h.reshape(channels, n, lanes)
    none = np.empty((0, n, lanes), rows.dtype)
    here = np.zeros(lanes, np.int32)
    for row in range(begin, end, lanes):
        fetch(x, rows, row)
        fetch_channels(p, payload, row)
        fetch(g, grads, row)
        fetch_channels(h, grad_moved, row)
        for w in range(grads.shape[0] - row, lanes):
            g[:, w] = REAL(0.0)
            h[:, :, w] = REAL(0.0)
        if masked:
            for w in range(lanes):
                here[w] = lengths[min(row + w, rows.shape[0] - 1)]
        for index in range(segments):
            kept[index] = x
            kept_p[index] = p
            if index + 1 < segments:
                low, high = index * segment, (index + 1) * segment
                advance(x, p, table, low, high, False, d, alpha, slope, d, here, masked, sigmoid, steepness, ends)
        share = REAL(0.0)
        for back in range(segments):
            index = segments - 1 - back
            low, high = index * segment, min((index + 1) * segment, depth)
            x[:] = kept[index]
            advance(x, none, table, low, high, True, d, alpha, slope, drop, here, masked, sigmoid, steepness, ends)
            count = span(start, stop, low, high)
            felt[: count if channels else 0] = REAL(0.0)
            for channel in range(channels):
                p[channel] = kept_p[index, channel]
                c = 0
                for layer in range(low, high):
                    i, j = start[layer], stop[layer]
                    carry(p[channel], first, second, i, j, alpha, drop, c, c)
                    c += j - i
                for layer in range(high - 1, low - 1, -1):
                    i, j = start[layer], stop[layer]
                    c -= j - i
                    carry_back(h[channel], first, second, i, j, alpha, drop, felt, c)
            if values_too:
                c = count
                for layer in range(high - 1, low - 1, -1):
                    i, j = start[layer], stop[layer]
                    c -= j - i
                    mix_back(g, first, second, i, j, alpha, slope, d, felt, channels > 0, steepness, c, ends)
            if steep:
                share += total(d, count)
        by_steepness[row // lanes] = share
        put(grad_rows, g, row)
        put_channels(grad_payload, h, row)

"""Template of the Numba kernels: `host.py` loads it once with REAL = float32 and once with float64.

Items lie as x[item, lane]: a lane is a row, so that the loops over lanes run in vector registers whatever the network.
With few rows there is one lane, and the loops run over the pairs of a layer instead. An exchange is three steps: take
differences d, let the sigmoid turn them into alpha and its slope, mix the items. What backward needs of a layer is kept in
rows of `d`, `alpha` and `slope`, one per comparator. Everything comes by address: the sigmoid (see `host.py`), so that a new
one compiles in a moment; the layers themselves, which forward and backward share; and memory.

Dimensions of what pointers point to are written as x[n, lanes]; offsets are spelled out, the last dimension the fastest.
"""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false
import numpy as np
from numba import float32 as REAL  # noqa: N812
from numba import int32, types, uint32  # pyright: ignore[reportAttributeAccessIssue]

from algonet.core.codegen.jit import cfunc, njit
from algonet.core.codegen.numba_math import where
from algonet.core.codegen.numba_pointers import call_at, offset, pointer_at

# --- template ---
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}
INF = REAL(np.inf)
ZERO, ONE = REAL(0.0), REAL(1.0)
REALS, LENGTHS, TABLE, COUNT = types.CPointer(REAL), types.CPointer(int32), types.CPointer(types.intp), types.intp
#: Bytes of a number.
SIZE = np.dtype(str(REAL)).itemsize


@njit(**OPTIONS)
def mixed(a, b, share):
    """What stays in both places with a probability of `share`."""
    return share * a + (ONE - share) * b, share * b + (ONE - share) * a


@njit(**OPTIONS)
def exchanged(a, b, share):
    """Both items after an exchange; exact at 0 and 1, where 0 times infinity is not 0."""
    near, far = mixed(a, b, share)
    return where(share == ONE, a, where(share == ZERO, b, near)), where(share == ONE, b, where(share == ZERO, a, far))


@njit(**OPTIONS)
def exchanged_back(a, b, share, rise, gap, felt, steepness):
    """Gradients (a, b) before an exchange from those after it, and what the steepness gets; `felt`: what the payload adds."""
    push = (b - a) * (rise * gap) + felt * rise
    first, second = mixed(a, b, share)
    return first - push * steepness, second + push * steepness, gap * push


@cfunc(types.void(REALS, REALS, REALS, REALS, REALS, REALS, LENGTHS, TABLE, *[COUNT] * 8, REAL), cache=True, **OPTIONS)
def run_layers(
    x, p, d, alpha, slope, ends, lengths, table, n, channels, lanes, low, high, keep, masked, sigmoid, steepness
):
    """Layers low..high on items x[n, lanes] and payload p[channels, n, lanes].

    With `keep` each comparator has its own row of d, alpha and slope, else each layer starts from row 0.
    """
    first, second, need = pointer_at(table[0], uint32), pointer_at(table[1], uint32), pointer_at(table[2], int32)
    start, stop, layer_need = pointer_at(table[3], int32), pointer_at(table[4], int32), pointer_at(table[5], int32)
    half = n // 2 + 1
    c = 0
    for layer in range(low, high):
        i, count = start[layer], stop[layer] - start[layer]
        if lanes == 1:
            # One lane: the loops run over the pairs, which are first put side by side in ends[2, half]
            for k in range(count):
                ends[k] = x[first[i + k]]
            for k in range(count):
                ends[half + k] = x[second[i + k]]
            for k in range(count):
                a, b = ends[k], ends[half + k]
                # Infinite where the order is decided crisply, 0 for equal infinities, NaN only where an item is
                d[c + k] = where(a == b, ZERO, b - a)
        else:
            for k in range(count):
                f, s, at = first[i + k] * lanes, second[i + k] * lanes, (c + k) * lanes
                for w in range(lanes):
                    a, b = x[f + w], x[s + w]
                    d[at + w] = where(a == b, ZERO, b - a)
        if masked:
            # Comparators that a short row does not have leave their items in order
            apart = where(steepness >= ZERO, INF, -INF)
            for k in range(count):
                least, at = max(need[i + k], layer_need[layer]), (c + k) * lanes
                for w in range(lanes):
                    d[at + w] = where(lengths[w] >= least, d[at + w], apart)
        row = c * lanes
        call_at(sigmoid, (offset(d, row), offset(alpha, row), offset(slope, row), count * lanes, steepness))
        if lanes == 1:
            for k in range(count):
                ends[k], ends[half + k] = exchanged(ends[k], ends[half + k], alpha[c + k])
            for k in range(count):
                x[first[i + k]] = ends[k]
            for k in range(count):
                x[second[i + k]] = ends[half + k]
        else:
            for k in range(count):
                f, s, at = first[i + k] * lanes, second[i + k] * lanes, (c + k) * lanes
                for w in range(lanes):
                    x[f + w], x[s + w] = exchanged(x[f + w], x[s + w], alpha[at + w])
        for channel in range(channels):
            for k in range(count):
                f, s, at = (channel * n + first[i + k]) * lanes, (channel * n + second[i + k]) * lanes, (c + k) * lanes
                for w in range(lanes):
                    p[f + w], p[s + w] = mixed(p[f + w], p[s + w], alpha[at + w])
        if keep:
            c += count


@cfunc(types.void(*[REALS] * 5, TABLE, *[COUNT] * 6), cache=True, **OPTIONS)
def run_payload_back(h, p, alpha, drop, grad_alpha, table, n, channels, lanes, low, high, count):
    """The gradient h[channels, n, lanes] of the payload back through layers low..high, which have `count` comparators.

    p[channels, n, lanes] is the payload before them, and is used up. `grad_alpha` gets its gradient by each alpha.
    """
    first, second = pointer_at(table[0], uint32), pointer_at(table[1], uint32)
    start, stop = pointer_at(table[3], int32), pointer_at(table[4], int32)
    for k in range(count * lanes):
        grad_alpha[k] = ZERO
    for channel in range(channels):
        c = 0
        for layer in range(low, high):
            for k in range(start[layer], stop[layer]):
                f, s, at = (channel * n + first[k]) * lanes, (channel * n + second[k]) * lanes, c * lanes
                for w in range(lanes):
                    drop[at + w] = p[f + w] - p[s + w]
                    p[f + w], p[s + w] = mixed(p[f + w], p[s + w], alpha[at + w])
                c += 1
        for layer in range(high - 1, low - 1, -1):
            c -= stop[layer] - start[layer]
            for k in range(start[layer], stop[layer]):
                f, s = (channel * n + first[k]) * lanes, (channel * n + second[k]) * lanes
                at = (c + k - start[layer]) * lanes
                for w in range(lanes):
                    grad_alpha[at + w] += (h[f + w] - h[s + w]) * drop[at + w]
                    h[f + w], h[s + w] = mixed(h[f + w], h[s + w], alpha[at + w])


@cfunc(types.void(*[REALS] * 6, TABLE, *[COUNT] * 6, REAL), cache=True, **OPTIONS)
def run_layers_back(g, d, alpha, slope, grad_alpha, ends, table, n, lanes, low, high, count, payload, steepness):
    """The gradient g[n, lanes] of the items back through layers low..high, which have `count` comparators.

    Leaves in `d` the gradient by the steepness of each exchange. `grad_alpha` is read if there is a payload.
    """
    first, second = pointer_at(table[0], uint32), pointer_at(table[1], uint32)
    start, stop = pointer_at(table[3], int32), pointer_at(table[4], int32)
    half = n // 2 + 1
    c = count
    for layer in range(high - 1, low - 1, -1):
        i, here = start[layer], stop[layer] - start[layer]
        c -= here
        if lanes == 1:
            for k in range(here):
                ends[k] = g[first[i + k]]
            for k in range(here):
                ends[half + k] = g[second[i + k]]
            for k in range(here):
                felt = grad_alpha[c + k] if payload else ZERO
                ends[k], ends[half + k], d[c + k] = exchanged_back(
                    ends[k], ends[half + k], alpha[c + k], slope[c + k], d[c + k], felt, steepness
                )
            for k in range(here):
                g[first[i + k]] = ends[k]
            for k in range(here):
                g[second[i + k]] = ends[half + k]
            continue
        for k in range(here):
            f, s, at = first[i + k] * lanes, second[i + k] * lanes, (c + k) * lanes
            for w in range(lanes):
                felt = grad_alpha[at + w] if payload else ZERO
                g[f + w], g[s + w], d[at + w] = exchanged_back(
                    g[f + w], g[s + w], alpha[at + w], slope[at + w], d[at + w], felt, steepness
                )


@njit(**OPTIONS)
def load(block, rows, payload, count, begin, n, channels, lanes):
    """rows[count, n] and payload[count, n, channels] (addresses) from row `begin` on into block[1 + channels, n, lanes].

    Lanes beyond the last row repeat it.
    """
    for w in range(lanes):
        row = min(begin + w, count - 1) * n
        for i in range(n):
            block[i * lanes + w] = pointer_at(rows, REAL)[row + i]
        for i in range(n):
            for j in range(channels):
                block[((1 + j) * n + i) * lanes + w] = pointer_at(payload, REAL)[(row + i) * channels + j]


@njit(**OPTIONS)
def store(rows, payload, block, count, begin, n, channels, lanes):
    """The way back of `load`."""
    for w in range(min(lanes, count - begin)):
        row = (begin + w) * n
        for i in range(n):
            pointer_at(rows, REAL)[row + i] = block[i * lanes + w]
        for i in range(n):
            for j in range(channels):
                pointer_at(payload, REAL)[(row + i) * channels + j] = block[((1 + j) * n + i) * lanes + w]


@njit(fastmath={"reassoc", "nsz"}, error_model="numpy")
def add_up(d, count):
    """The sum of `count` numbers, in any order: in vector registers."""
    total = ZERO
    for k in range(count):
        total += d[k]
    return total


@njit(**OPTIONS, nogil=True, cache=True)
def forward(
    rows, payload, lengths, values, moved, table, layers, sigmoid, steepness, count, n, channels, lanes, masked,
    begin, end, work,
):  # fmt: skip
    """Rows begin..end of `count`, `lanes` at a time.

    Workspace: (n (1 + channels) + 3 half) lanes + 2 half numbers with half = n // 2 + 1, and a length for each lane.
    """
    half, steep = n // 2 + 1, REAL(steepness)
    x = pointer_at(work, REAL)
    p = offset(x, n * lanes)
    d = offset(p, channels * n * lanes)
    alpha = offset(d, half * lanes)
    slope = offset(alpha, half * lanes)
    ends = offset(slope, half * lanes)
    here = pointer_at(work + SIZE * ((n * (1 + channels) + 3 * half) * lanes + 2 * half), int32)
    places = pointer_at(table, types.intp)
    for row in range(begin, end, lanes):
        load(x, rows, payload, count, row, n, channels, lanes)
        if masked:
            for w in range(lanes):
                here[w] = pointer_at(lengths, int32)[min(row + w, count - 1)]
        call_at(
            layers,
            (x, p, d, alpha, slope, ends, here, places, n, channels, lanes, 0, places[6], 0, masked, sigmoid, steep),
        )
        store(values, moved, x, count, row, n, channels, lanes)


@njit(**OPTIONS, nogil=True, cache=True)
def backward(
    rows, payload, lengths, grads, grad_moved, grad_rows, grad_payload, by_steepness, table, layers, layers_back,
    payload_back, sigmoid, steepness, count, n, channels, lanes, masked, segment, values_too, steepness_too,
    begin, end, work,
):  # fmt: skip
    """Gradients of rows begin..end: checkpoints before each segment of layers, then segment by segment backwards.

    Workspace, with s segments and half = n // 2 + 1: ((s + 2) n (1 + channels) + (5 with channels, else 3) segment half) lanes
    + 2 half numbers, and a length for each lane.
    """
    half, steep = n // 2 + 1, REAL(steepness)
    places = pointer_at(table, types.intp)
    start, stop, depth = pointer_at(places[3], int32), pointer_at(places[4], int32), places[6]
    segments = (depth + segment - 1) // segment
    most = segment * half * lanes
    items = n * lanes
    x = pointer_at(work, REAL)
    p = offset(x, items)
    g = offset(p, channels * items)
    h = offset(g, items)
    d = offset(h, channels * items)
    alpha = offset(d, most)
    slope = offset(alpha, most)
    drop = offset(slope, most)
    grad_alpha = offset(drop, most if channels else 0)
    ends = offset(grad_alpha, most if channels else 0)
    checkpoints = offset(ends, 2 * half)
    checkpoints_p = offset(checkpoints, segments * items)
    size = 2 * (1 + channels) * items + (5 if channels else 3) * most + 2 * half + segments * (1 + channels) * items
    here = pointer_at(work + SIZE * size, int32)
    for row in range(begin, end, lanes):
        load(x, rows, payload, count, row, n, channels, lanes)
        load(g, grads, grad_moved, count, row, n, channels, lanes)
        # Lanes beyond the last row have no gradient
        for w in range(count - row, lanes):
            for i in range((1 + channels) * n):
                g[i * lanes + w] = ZERO
        if masked:
            for w in range(lanes):
                here[w] = pointer_at(lengths, int32)[min(row + w, count - 1)]
        for index in range(segments):
            for k in range(items):
                checkpoints[index * items + k] = x[k]
            for k in range(channels * items):
                checkpoints_p[index * channels * items + k] = p[k]
            if index + 1 < segments:
                low, high = index * segment, (index + 1) * segment
                call_at(
                    layers,
                    (
                        x,
                        p,
                        d,
                        alpha,
                        slope,
                        ends,
                        here,
                        places,
                        n,
                        channels,
                        lanes,
                        low,
                        high,
                        0,
                        masked,
                        sigmoid,
                        steep,
                    ),
                )
        grad_steepness = ZERO
        for back in range(segments):
            index = segments - 1 - back
            low, high = index * segment, min((index + 1) * segment, depth)
            before, before_p = offset(checkpoints, index * items), offset(checkpoints_p, index * channels * items)
            call_at(
                layers,
                (
                    before,
                    before_p,
                    d,
                    alpha,
                    slope,
                    ends,
                    here,
                    places,
                    n,
                    0,
                    lanes,
                    low,
                    high,
                    1,
                    masked,
                    sigmoid,
                    steep,
                ),
            )
            pairs = 0
            for layer in range(low, high):
                pairs += stop[layer] - start[layer]
            if channels:
                call_at(
                    payload_back, (h, before_p, alpha, drop, grad_alpha, places, n, channels, lanes, low, high, pairs)
                )
            if values_too:
                call_at(
                    layers_back,
                    (g, d, alpha, slope, grad_alpha, ends, places, n, lanes, low, high, pairs, channels, steep),
                )
            if steepness_too:
                grad_steepness += add_up(d, pairs * lanes)
        pointer_at(by_steepness, REAL)[row // lanes] = grad_steepness
        store(grad_rows, grad_payload, g, count, row, n, channels, lanes)
        # Infinite items take part crisply: what ties among them left is not theirs
        for k in range(row * n, min(row + lanes, count) * n):
            if abs(pointer_at(rows, REAL)[k]) == INF:
                pointer_at(grad_rows, REAL)[k] = ZERO

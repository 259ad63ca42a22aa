"""The CPU rasteriser's forward pass: each row of a tile of samples finds the nearest unit of its faces' coverage, and mixes
what it shows. A template, see `faces`.

The innermost loop runs over the 16 pixels of a tile's row, has no branches and touches one flat buffer at constant offsets,
so that LLVM turns it into vector instructions. Pixels right of or below the image are computed and dropped.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import (
    DENOMINATOR,
    DEPTH,
    DIRECTIONS,
    EXACT,
    FACTOR,
    HIDDEN,
    LANES,
    LEAST,
    LENGTHS,
    OPTIONS,
    PLANES,
    TURN,
    edge,
    exp,
    log,
    real,
    row_ranges,
    vector,
)

FARTHEST, HALF = 40.0, 4
bounded = dot = each_times = edge_moment = minus = plus = plus_times = seen_at = spread_of = None

# --- template ---

#: Rows of 16 numbers kept per face: coverage, place (steepness times depth), weight, that times the position (two rows), front
#: share, exp(place).
PAIR = 7
#: The solver's range in steps of exp around a guess, and its most rounds.
SPAN, ROUNDS = 25.0, 30
#: A limit of the places where everything is shown, and the least coverage that is seen at all.
NOWHERE_FAR, LEAST_SEEN = 1e30, 1e-30


@njit(forceinline=True, **OPTIONS)
def face_numbers(o, y):
    """What samples of one row need to know of a face: corners from that row, edges, centroid, planes, and the other numbers."""
    xs, ys = (o[0], o[2], o[4]), (o[1] - y, o[3] - y, o[5] - y)
    ux, uy = (
        (o[DIRECTIONS], o[DIRECTIONS + 2], o[DIRECTIONS + 4]),
        (o[DIRECTIONS + 1], o[DIRECTIONS + 3], o[DIRECTIONS + 5]),
    )
    third = real(1.0 / 3.0)
    centre = (xs[0] + xs[1] + xs[2]) * third, (ys[0] + ys[1] + ys[2]) * third
    return (
        (xs, ys, ux, uy, vector(o, LENGTHS)),
        centre,
        vector(o, DENOMINATOR),
        vector(o, DEPTH),
        (o[LEAST], o[TURN], o[FACTOR]),
    )


@njit(forceinline=True, **OPTIONS)
def see(face, x, sigma2, steepness, perspective, two_sided):
    """What a sample sees of a face: what `seen_at` says and is told of coverage, moments and position; of each edge the start,
    the distance, and the integrals of the density along it."""
    (xs, ys, ux, uy, lengths), (gx, gy), d, depths, (least, turn, factor) = face
    xs = xs[0] - x, xs[1] - x, xs[2] - x
    start, away = plus(each_times(xs, ux), each_times(ys, uy)), minus(each_times(ys, ux), each_times(xs, uy))
    c0, m0, w0, o0, k0 = edge(start[0], start[0] + lengths[0], away[0], sigma2)
    c1, m1, w1, o1, k1 = edge(start[1], start[1] + lengths[1], away[1], sigma2)
    c2, m2, w2, o2, k2 = edge(start[2], start[2] + lengths[2], away[2], sigma2)
    p, m, within = c0 + c1 + c2, (m0, m1, m2), w0 + w1 + w2
    second = plus(
        edge_moment(away[0] * m0, o0, ux[0], uy[0]),
        plus(edge_moment(away[1] * m1, o1, ux[1], uy[1]), edge_moment(away[2] * m2, o2, ux[2], uy[2])),
    )
    second = second[0] + within, second[1], second[2] + within
    mx, my = dot(uy, m), -dot(ux, m)
    spread = spread_of(p, mx, my, second, HALF)
    mean, centre, sides = seen_at(
        p, mx, my, spread, x - gx, -gy, d, depths, least, turn, factor, steepness, perspective, two_sided
    )
    return mean, centre, sides, (p, mx, my, second, x - gx, -gy), (start, away, k0, k1, k2)


@njit(**OPTIONS)
def lanes_forward(o, x0, y, steepness, sigma2, perspective, two_sided, buffer):
    """One face and the 16 pixels of one row, into the rows of the buffer."""
    face, one = face_numbers(o, y), real(1.0)
    for i in range(LANES):
        mean, _, sides, _, _ = see(face, x0 + real(i), sigma2, steepness, perspective, two_sided)
        weight = mean[3]
        buffer[i], buffer[LANES + i], buffer[2 * LANES + i] = sides[0], sides[4], weight
        buffer[3 * LANES + i], buffer[4 * LANES + i] = weight * mean[0], weight * mean[1]
        # Rounded to 0: products of next to nothing are not normal numbers, which take a hundred times as long
        buffer[5 * LANES + i] = one - (one - sides[1]) if two_sided else one


@njit(forceinline=True, **OPTIONS)
def widen_range(pair, work):
    for i in range(LANES):
        place, there = pair[LANES + i], pair[i] > real(0.0)
        low, high = work[i], work[LANES + i]
        work[i] = min(low, place if there else low)
        work[LANES + i] = max(high, place if there else high)


@njit(forceinline=True, **OPTIONS)
def add_nearer(pair, work):
    for i in range(LANES):
        work[3 * LANES + i] += pair[i] if pair[LANES + i] < work[2 * LANES + i] else real(0.0)


@njit(**OPTIONS)
def guess_limits(pairs, count, silhouettes, work):
    """Where the coverages, crisply ordered, add up to the silhouettes, into the third row of `work`: by halving between the
    nearest and the furthest place (the first two rows), to some steps of exp."""
    for i in range(LANES):
        work[i], work[LANES + i] = real(NOWHERE_FAR), real(-NOWHERE_FAR)
    for n in range(count):
        widen_range(pairs[n], work)
    widest = real(0.0)
    for i in range(LANES):
        widest = max(widest, work[LANES + i] - work[i])
        work[2 * LANES + i] = (work[i] + work[LANES + i]) * real(0.5)
    while widest > real(4.0):
        for i in range(LANES):
            work[3 * LANES + i] = real(0.0)
        for n in range(count):
            add_nearer(pairs[n], work)
        for i in range(LANES):
            middle, below = work[2 * LANES + i], work[3 * LANES + i] < silhouettes[i]
            work[i], work[LANES + i] = (middle if below else work[i]), (work[LANES + i] if below else middle)
            work[2 * LANES + i] = (work[i] + work[LANES + i]) * real(0.5)
        widest *= real(0.5)


@njit(forceinline=True, **OPTIONS)
def exponentials(pair, work):
    """exp(place - guess), within what the solver's range may meet."""
    for i in range(LANES):
        away = pair[LANES + i] - work[2 * LANES + i]
        pair[6 * LANES + i] = exp(min(max(away, real(-1.6 * SPAN)), real(1.6 * SPAN)))


@njit(forceinline=True, **OPTIONS)
def add_lost(pair, work):
    """With away = logistic(place - y), from exp(guess - y) in the first row: of fronts the coverage * away that is lost, of
    backs the coverage * (1 - away) that is kept, and the slopes of both."""
    one = real(1.0)
    for i in range(LANES):
        w = pair[6 * LANES + i] * work[i]
        kept = one / (one + w)
        away = w * kept
        front = pair[i] * pair[5 * LANES + i]
        back = (pair[i] - front) * kept
        front *= away
        work[3 * LANES + i] += front
        work[4 * LANES + i] += front * kept
        work[9 * LANES + i] += back
        work[10 * LANES + i] += back * away


@njit(**OPTIONS)
def newton_step(silhouettes, hidden, back, work, limit):
    """One step for lost fronts = kept backs + surplus, as logarithms: a straight line where one depth is seen, and where what
    is hidden is one side of a surface; halving where that is slow.

    Rows of `work` from 3 on: lost and its slope, the bracket, the last step, (9) kept and its slope. Returns how many are not
    solved."""
    unsolved, tiny, zero = real(0.0), real(LEAST_SEEN), real(0.0)
    for i in range(LANES):
        lost, kept, low, high = work[3 * LANES + i], work[9 * LANES + i], work[5 * LANES + i], work[6 * LANES + i]
        surplus = hidden[i] - back[i]
        off = lost - kept - surplus
        over = off > zero
        low, high = (limit[i] if over else low), (high if over else limit[i])
        left, right = max(lost - min(surplus, zero), tiny), max(kept + max(surplus, zero), tiny)
        slope = work[4 * LANES + i] / left + work[10 * LANES + i] / right
        step = (log(left) - log(right)) / max(slope, tiny)
        to, middle = limit[i] + step, (low + high) * real(0.5)
        fast = (abs(step) < real(0.5) * abs(work[7 * LANES + i])) & (to > low) & (to < high)
        near = (abs(off) <= real(EXACT) * max(silhouettes[i] + hidden[i], tiny)) | (high - low < real(EXACT))
        step = step if fast else middle - limit[i]
        work[5 * LANES + i], work[6 * LANES + i], work[7 * LANES + i] = low, high, step
        limit[i] += real(0.0) if near else step
        unsolved += real(0.0) if near else real(1.0)
    return unsolved


@njit(**OPTIONS)
def solve_limits(pairs, count, silhouettes, hidden, back, work, limit):
    """The y of each pixel with sum of coverage * logistic(place - y) = hidden; NOWHERE_FAR where all of a row is shown."""
    everything = True
    for i in range(LANES):
        limit[i] = real(NOWHERE_FAR)
        everything = everything and hidden[i] <= real(HIDDEN) * silhouettes[i]
    if everything:
        return
    guess_limits(pairs, count, silhouettes, work)
    for n in range(count):
        exponentials(pairs[n], work)
    for i in range(LANES):
        limit[i], work[5 * LANES + i], work[6 * LANES + i] = real(0.0), real(-SPAN), real(SPAN)
        work[7 * LANES + i] = real(2 * SPAN)
    for _ in range(ROUNDS):
        for i in range(LANES):
            work[i], work[3 * LANES + i], work[4 * LANES + i] = exp(-limit[i]), real(0.0), real(0.0)
            work[9 * LANES + i], work[10 * LANES + i] = real(0.0), real(0.0)
        for n in range(count):
            add_lost(pairs[n], work)
        if newton_step(silhouettes, hidden, back, work, limit) == real(0.0):
            break
    for i in range(LANES):
        limit[i] += work[2 * LANES + i]


@njit(**OPTIONS)
def mix_row(pairs, count, here, prepared, limit, channels, sums):
    """Sums over a row's pairs of what is shown, v = coverage * logistic(limit - place), and of what is being hidden,
    v * logistic(place - limit): alone, then times channels and depth."""
    width = channels + 2
    for c in range(2 * width):
        row = sums[c]
        for i in range(LANES):
            row[i] = real(0.0)
    shown, turning = np.empty(LANES, pairs.dtype), np.empty(LANES, pairs.dtype)
    for n in range(count):
        pair, o = pairs[n], prepared[here[n]]
        for i in range(LANES):
            ratio = exp(min(max(pair[LANES + i] - limit[i], -FARTHEST), FARTHEST))
            share = real(1.0) / (real(1.0) + ratio)
            shown[i] = pair[i] * share
            turning[i] = shown[i] * ratio * share
        add_row(shown, sums[0])
        add_row(turning, sums[width])
        mix(pair, shown, turning, vector(o, DEPTH), sums[channels + 1], sums[width + channels + 1])
        for c in range(channels):
            mix(pair, shown, turning, vector(o, PLANES + 3 * c), sums[1 + c], sums[width + 1 + c])


@njit(forceinline=True, **OPTIONS)
def add_row(row, total):
    for i in range(LANES):
        total[i] += row[i]


@njit(forceinline=True, **OPTIONS)
def mix(pair, shown, turning, plane, total, turned):
    for i in range(LANES):
        value = pair[2 * LANES + i] * plane[0] + pair[3 * LANES + i] * plane[1] + pair[4 * LANES + i] * plane[2]
        total[i] += shown[i] * value
        turned[i] += turning[i] * value


@njit(forceinline=True, **OPTIONS)
def tile_at(tile, per_item, grid, softness, settings):
    """A tile's item, first row and column, twice the steepness, the square of the noise's sigma, and its reach."""
    item = tile // per_item
    columns = (grid[item, 1] + LANES - 1) // LANES
    sigma2 = real(settings[0]) * softness[item, 0] * softness[item, 0]
    first_row, first_column = (tile % per_item) // columns * LANES, (tile % per_item) % columns * LANES
    return item, first_row, first_column, real(2.0) * softness[item, 1], sigma2, real(settings[1]) * np.sqrt(sigma2)


@njit(**OPTIONS, cache=True)
def forward_tiles(
    begin, stride, tile_starts, faces_of, prepared, softness, grid, settings, total_out, limit_out, mean_out, edge_out,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on. `settings`: the `numbers` of the plan.

    `softness` is scale and steepness, `grid` rows and columns of samples of each item. `mean_out` has depth as its last
    channel; `edge_out` has the means over what is just being hidden.
    """
    channels = mean_out.shape[3] - 1
    per_item = (tile_starts.shape[0] - 1) // grid.shape[0]
    power, perspective, two_sided = real(settings[2]), settings[3] > 0, settings[4] > 0
    sums = np.empty((2 * (channels + 2), LANES), prepared.dtype)
    front, back = np.empty(LANES, prepared.dtype), np.empty(LANES, prepared.dtype)
    silhouettes, hidden = np.empty(LANES, prepared.dtype), np.empty(LANES, prepared.dtype)
    limit, work = np.empty(LANES, prepared.dtype), np.empty(11 * LANES, prepared.dtype)
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        item, first_row, first_column, steepness, sigma2, reach = tile_at(tile, per_item, grid, softness, settings)
        height, width = grid[item, 0], grid[item, 1]
        if first_row >= height:
            continue
        entries = faces_of[tile_starts[tile] : tile_starts[tile + 1]]
        rows = np.empty((entries.shape[0], 2), np.int64)
        row_ranges(entries, prepared, real(first_row), reach, rows)
        pairs = np.empty((max(1, entries.shape[0]), PAIR * LANES), prepared.dtype)
        here = np.empty(entries.shape[0], np.int64)
        x0 = real(first_column) + real(0.5)
        for r in range(min(LANES, height - first_row)):
            count = 0
            for i in range(LANES):
                front[i], back[i] = real(0.0), real(0.0)
            for entry in range(entries.shape[0]):
                if r < rows[entry, 0] or r >= rows[entry, 1]:
                    continue
                here[count] = entries[entry]
                pair = pairs[count]
                y = real(first_row + r) + real(0.5)
                lanes_forward(prepared[entries[entry]], x0, y, steepness, sigma2, perspective, two_sided, pair)
                for i in range(LANES):
                    part = pair[i] * pair[5 * LANES + i]
                    front[i] += part
                    back[i] += pair[i] - part
                count += 1
            for i in range(LANES):
                silhouettes[i], _, _, hidden[i] = bounded(front[i], back[i], power)
            solve_limits(pairs, count, silhouettes, hidden, back, work, limit)
            mix_row(pairs, count, here, prepared, limit, channels, sums)
            row = first_row + r
            for i in range(min(LANES, width - first_column)):
                x = first_column + i
                total_out[item, row, x, 0], total_out[item, row, x, 1], limit_out[item, row, x] = (
                    front[i],
                    back[i],
                    limit[i],
                )
                shown, turning = sums[0, i], sums[channels + 2, i]
                inverse = real(1.0) / max(shown, real(LEAST_SEEN))
                edge = real(1.0) / max(turning, real(LEAST_SEEN))
                for c in range(channels + 1):
                    mean = sums[1 + c, i] * inverse
                    mean_out[item, row, x, c] = mean
                    # Where nothing is being hidden, what might be is the mean
                    turned = sums[channels + 3 + c, i] * edge
                    edge_out[item, row, x, c] = turned if turning > real(LEAST_SEEN) else mean
